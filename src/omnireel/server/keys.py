"""API keys: only digests of them are kept, and comparing takes as long whichever key is wrong."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from omnireel.errors import BadSetting, Unauthorized

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


class Keys:
    """The keys that are let in; none means that everybody is."""

    def __init__(self, digests: Iterable[str] = ()) -> None:
        self._digests = tuple(dict.fromkeys(digests))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, authorization: str | None) -> str:
        """Who asks, by the value of the Authorization header: the beginning of the key's digest, "" where no keys are used.

        Raises:
            Unauthorized: there are keys, and this is none of them.
        """
        if not self._digests:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized("an API key is needed", hint="send it as Authorization: Bearer KEY")
        asked = _digest(key.strip())
        # All are compared, so that the time tells nothing about which one is nearly right.
        matches = [digest for digest in self._digests if hmac.compare_digest(digest, asked)]
        if not matches:
            raise Unauthorized("the API key is not known here")
        return asked[:16]


def keys_of(given: Sequence[str], file: Path | None) -> Keys:
    """The keys of the settings and of a file with one a line, in which # begins a comment.

    Raises:
        BadSetting: the file cannot be read or holds no key.
    """
    found = list(given)
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError):
            raise BadSetting("api_key_file", file.name, "the server's settings", "it must be a text file") from None
        in_file = [line for line in lines if line and not line.startswith("#")]
        if not in_file:
            # An empty file would let everybody in, which nobody means who names one.
            raise BadSetting("api_key_file", file.name, "the server's settings", "it must hold at least one key")
        found += in_file
    return Keys(digest[1].lower() if (digest := _DIGEST.fullmatch(key)) else _digest(key) for key in found)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
