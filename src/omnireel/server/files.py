"""/v1/files: uploads that requests name by `file_id`, so that one is sent once for many clips."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse
from starlette.datastructures import UploadFile

from omnireel.errors import InvalidRequest, UnknownJob
from omnireel.server.form import reading
from omnireel.server.inputs import MAX_FILE_BYTES
from omnireel.server.jobs import StoredFile, new_id
from omnireel.server.problem import answers
from omnireel.server.schemas import Deleted, File, FileList
from omnireel.server.sending import Sent
from omnireel.server.service import Service, service_of
from omnireel.server.storage import copied

router = APIRouter(tags=["files"])

MAX_NAME_LETTERS = 255
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}},
                }
            }
        },
    }
}


@router.post("/v1/files", response_model=File, responses=answers(415), openapi_extra=_BODY)
async def upload(request: Request) -> File:
    """Keeps a file until it is deleted."""
    service = service_of(request)
    async with reading(request, max_part_bytes=2**20) as fields:
        upload, purpose = _upload(fields.values)
        stored = await asyncio.to_thread(_keep, service, upload, purpose)
    return _file(stored)


@router.get("/v1/files", response_model=FileList, responses=answers())
def list_files(request: Request) -> FileList:
    """Every file, the newest first."""
    return FileList(data=[_file(stored) for stored in service_of(request).jobs.files()])


@router.get("/v1/files/{file_id}", response_model=File, responses=answers(404))
def retrieve_file(request: Request, file_id: str) -> File:
    """What is known of a file."""
    return _file(service_of(request).jobs.file(file_id))


@router.get(
    "/v1/files/{file_id}/content",
    response_class=FileResponse,
    responses={
        **answers(404, 416),
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
    },
)
def file_content(request: Request, file_id: str) -> FileResponse:
    """The bytes of a file, never shown by a browser as what they may pretend to be."""
    service = service_of(request)
    stored = service.jobs.file(file_id)
    path = service.storage.file(stored.id)
    if not path.is_file():
        raise UnknownJob(f"the file {stored.id} is gone")
    return Sent(path, media_type="application/octet-stream", filename=stored.id)


@router.delete("/v1/files/{file_id}", response_model=Deleted, responses=answers(404))
def delete_file(request: Request, file_id: str) -> Deleted:
    """Forgets a file; jobs that named it have copies."""
    service = service_of(request)
    stored = service.jobs.file(file_id)
    service.jobs.remove_file(stored.id)
    service.storage.drop(service.storage.file(stored.id))
    return Deleted(id=stored.id, object="file")


def _upload(values: Mapping[str, Any]) -> tuple[UploadFile, str]:
    unknown = set(values) - {"file", "purpose"}
    if unknown:
        raise InvalidRequest(min(unknown)[:60], "...", "there is no such field; there are file and purpose")
    found, purpose = values.get("file"), values.get("purpose", "user_data")
    if not isinstance(found, UploadFile):
        raise InvalidRequest("file", None, "it must be a file of a form")
    if not isinstance(purpose, str) or len(purpose) > MAX_NAME_LETTERS:
        raise InvalidRequest("purpose", "...", "it must be a short text")
    return found, purpose


def _keep(service: Service, upload: UploadFile, purpose: str) -> StoredFile:
    with service.storage.arriving() as folder:
        arrived = folder / "file"
        copied(upload.file, arrived, name="file", max_bytes=MAX_FILE_BYTES)
        stored = StoredFile(
            id=new_id("file"),
            # Only ever told, never a path.
            name=(upload.filename or "file")[:MAX_NAME_LETTERS],
            purpose=purpose,
            bytes=arrived.stat().st_size,
            created_at=time.time(),
        )
        place = service.storage.file(stored.id)
        service.storage.keep(arrived, place)
        try:
            service.jobs.add_file(stored)
        except BaseException:
            service.storage.drop(place)
            raise
    return stored


def _file(stored: StoredFile) -> File:
    return File(
        id=stored.id,
        bytes=stored.bytes,
        created_at=int(stored.created_at),
        filename=stored.name,
        purpose=stored.purpose,
    )
