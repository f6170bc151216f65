"""Files as answers, also where they are removed while the answer is being made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.responses import FileResponse

from omnireel.errors import UnknownJob

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Sent(FileResponse):
    """A file that somebody may delete at any time: 404 until it has been opened, and whole from then on."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it.

        Raises:
            UnknownJob: it is gone.
        """
        try:
            await super().__call__(scope, receive, send)
        except RuntimeError as error:
            if "does not exist" not in str(error):
                raise
            raise UnknownJob("the file is gone") from None
