"""The playground at `/`: one page, served as it lies here, that talks to this server and to nobody else."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

router = APIRouter(include_in_schema=False)

PAGE = Path(__file__).with_name("playground.html")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Whatever a prompt or an answer says, the browser loads nothing from elsewhere."""


@router.get("/", response_class=FileResponse)
async def page() -> FileResponse:
    """The page; what it asks for needs a key where there are keys, which its user types."""
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
    return FileResponse(PAGE, media_type="text/html", headers=headers)
