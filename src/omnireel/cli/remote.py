"""`omnireel generate --server URL`: the same command, run by a server that is there already.

Knows the videos API alone, through the standard library: no model and no torch are loaded here.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from omnireel.cli import show
from omnireel.config import given_settings
from omnireel.errors import ClientError, EngineError, InvalidRequest, OmniReelError
from omnireel.request import MediaKind, MediaRef

if TYPE_CHECKING:
    from omnireel.observe.progress import ProgressBar
    from omnireel.request import DiffusionSamplingParams, FramesU8

SILENT_SECONDS = 60.0
"""Longest silence of a server; events come with a heartbeat."""
_OURS = ("model", "log_level", "log_format", "timeout_seconds")
"""Settings that have a meaning although the model is elsewhere."""


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuses settings of an engine, which the server has already.

    Raises:
        ClientError: naming the first of them.
    """
    for name in given_settings(arguments):
        if name not in _OURS:
            raise ClientError(
                f"--{name.replace('_', '-')} cannot go with --server: the model is set up there", hint="leave it out"
            )


def generate(
    server: Server,
    body: Mapping[str, Any],
    media: Sequence[MediaRef],
    path: Path | None,
    *,
    bar: ProgressBar,
    on_preview: Callable[[FramesU8], None] | None,
) -> dict[str, Any]:
    """Has a clip made and downloads it; gives what is told of it. Given up there too when this is interrupted.

    Raises:
        OmniReelError: what the server said, or that there is none.
    """
    from omnireel.media.aside import check_writable, written_aside
    from omnireel.media.recipe import read_recipe

    if path is not None:
        check_writable(path)
    with bar, _uploaded(server, media) as fields:
        bar.phase("asking the server")
        job = server.ask("POST", "/v1/videos", {**body, **fields})
        try:
            job = _watched(server, job["id"], bar, on_preview)
        except BaseException:
            with suppress(OmniReelError):
                server.ask("POST", f"/v1/videos/{job['id']}/cancel")
            raise
        if job["status"] != "completed":
            error = job["error"] or {"code": "cancelled", "message": f"job {job['id']} was cancelled"}
            raise _told(error)
        path = _free_path(job["seed"]) if path is None else path
        bar.phase("downloading")
        with (
            written_aside(path, suffixes=(".mp4",)) as aside,
            server.answer("GET", f"/v1/videos/{job['id']}/content") as content,
            aside.open("wb") as file,
        ):
            shutil.copyfileobj(content, file)
    recipe = read_recipe(path)
    told = {name: job[name] for name in _TOLD}
    return {
        "path": show.name_of(path), "size_bytes": path.stat().st_size, "job_id": job["id"], **told,
        "recipe": None if recipe is None else {"frames_digest": recipe.frames_digest, "model": recipe.model},
    }  # fmt: skip


def body_of(prompt: str, sampling: DiffusionSamplingParams, given: Sequence[str], model: str | None) -> dict[str, Any]:
    """A request's body: of the sampling parameters those that were given."""
    if sampling.output_type != "frames":
        raise InvalidRequest("output_type", sampling.output_type, "a server writes clips, so it must be frames")
    values = {name: getattr(sampling, name) for name in given if name != "output_type"}
    extra = values.pop("extra_args", None)
    return {
        "prompt": prompt,
        **values,
        **({} if extra is None else {"extra_params": dict(extra)}),
        **({} if model is None else {"model": model}),
    }


class Server:
    """A server's address and key. Nothing is sent through a proxy, and redirects are not followed with the key."""

    def __init__(self, url: str, key: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ClientError(f"--server: {url} is no address", hint="write http://HOST:PORT")
        self._url = url.rstrip("/")
        self._key = key
        self._opener = build_opener(ProxyHandler({}), _NoRedirects)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON of an answer.

        Raises:
            OmniReelError: the server's own error, or that it cannot be reached.
        """
        content = None if body is None else json.dumps(body).encode()
        with self.answer(method, path, content, "application/json") as answer:
            try:
                found: dict[str, Any] = json.loads(answer.read())
            except ValueError:
                raise EngineError(f"what answers at {self._url} is no omnireel server") from None
        return found

    @contextmanager
    def answer(self, method: str, path: str, body: bytes | None = None, kind: str = "") -> Iterator[Any]:
        """An answer that is read as it comes."""
        headers = {"Content-Type": kind} if body is not None else {}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = Request(self._url + path, body, headers, method=method)
        try:
            with self._opener.open(request, timeout=SILENT_SECONDS) as answer:
                yield answer
        except HTTPError as error:
            with error:
                raise _told(_error_of(error)) from None
        except (URLError, OSError, http.client.HTTPException) as error:
            why = error.reason if isinstance(error, URLError) else error
            raise EngineError(f"the server at {self._url} cannot be reached ({why})", hint="is it running?") from None


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@contextmanager
def _uploaded(server: Server, media: Sequence[MediaRef]) -> Iterator[dict[str, Any]]:
    """The fields that name the media, whose files lie on the server within this block."""
    ids: list[str] = []
    try:
        items = []
        for ref in media:
            content = ref.source if isinstance(ref.source, bytes) else _content(ref)
            edge = secrets.token_hex(16)
            head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="file"\r\n\r\n'.encode()
            form = head + content + f"\r\n--{edge}--\r\n".encode()
            with server.answer("POST", "/v1/files", form, f"multipart/form-data; boundary={edge}") as answer:
                ids.append(json.loads(answer.read())["id"])
            items.append({"file_id": ids[-1]})
        yield _fields(media, items)
    finally:
        for file_id in ids:
            with suppress(OmniReelError):
                server.ask("DELETE", f"/v1/files/{file_id}")


def _content(ref: MediaRef) -> bytes:
    assert isinstance(ref.source, Path)
    try:
        return ref.source.read_bytes()
    except OSError as error:
        raise InvalidRequest(ref.name, str(ref.source), f"it cannot be read ({error.strerror})") from None


def _fields(media: Sequence[MediaRef], items: list[dict[str, str]]) -> dict[str, Any]:
    if not media:
        return {}
    starts = [ref.start_seconds for ref in media if ref.kind is MediaKind.VIDEO and ref.start_seconds]
    more = {"start_time_seconds": starts} if starts else {}
    if all(ref.role == "reference" for ref in media):
        # Pictures alone would be taken for keyframes.
        are_pictures = all(ref.kind is MediaKind.IMAGE for ref in media)
        return {"image_reference" if are_pictures else "input_references": items, **more}
    indices = [0 if ref.role == "first_frame" else -1 for ref in media]
    return {"input_reference": items, "frame_indices": indices, **more}


def _watched(
    server: Server, job_id: str, bar: ProgressBar, on_preview: Callable[[FramesU8], None] | None
) -> dict[str, Any]:
    """Follows a job to its end, also over a server that is started again."""
    from omnireel.media.decode import read_picture

    while True:
        with server.answer("GET", f"/v1/videos/{job_id}/events") as answer:
            name = ""
            for line in answer:
                word, _, rest = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name = rest
                elif word == "data" and name == "progress":
                    data = json.loads(rest)
                    if data["total"] and data["step"]:
                        bar.update(data["step"], data["total"], data["step_seconds"])
                    if on_preview is not None and "preview" in data:
                        picture = base64.b64decode(data["preview"].partition(",")[2])
                        on_preview(read_picture(picture, name="preview")[0])
        job = server.ask("GET", f"/v1/videos/{job_id}")
        if job["status"] in ("completed", "failed", "cancelled"):
            return job


def _error_of(error: HTTPError) -> Mapping[str, Any]:
    try:
        found = json.loads(error.read())["error"]
        return {"code": str(found["code"]), "message": str(found["message"])}
    except (ValueError, KeyError, TypeError):
        return {"code": "", "message": f"the server answered {error.code}"}


def _told(error: Mapping[str, Any]) -> OmniReelError:
    return OmniReelError.from_dict({"code": error["code"], "message": error["message"], "hint": "", "details": {}})


def _free_path(seed: int) -> Path:
    path, number = Path(f"omnireel-{seed}.mp4"), 1
    while path.exists():
        number += 1
        path = Path(f"omnireel-{seed}-{number}.mp4")
    return path


_TOLD = (
    "task", "seed", "size", "num_frames", "fps", "seconds", "num_inference_steps", "stage_durations", "peak_memory_mb",
)  # fmt: skip
