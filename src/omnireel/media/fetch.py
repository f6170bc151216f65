"""The one door for files named by a URL: bounded in size, time, redirects and addresses.

A host's name is resolved once and the connection goes to the address that was checked, so a name that answers otherwise a
moment later gains nothing. Only http, https and data are spoken.
"""

from __future__ import annotations

import binascii
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from urllib.parse import SplitResult, unquote_to_bytes, urljoin, urlsplit

from omnireel.errors import MediaUnreadable

MAX_REDIRECTS = 5
_CHUNK_BYTES = 1 << 16
_PIECE_LETTERS = 1 << 20
"""Of a data URL, which is taken apart piece by piece: it may be the largest thing in memory."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that is handed out of IPv6 (RFC 4291); what lies beside it leads into some local network, by one mechanism or another."""


def is_url(text: str) -> bool:
    """Whether a user's word for a file is a URL that `fetch` takes."""
    return text[:6].partition(":")[0].lower() in ("http", "https", "data")


def fetch(url: str, *, name: str, max_bytes: int, timeout_seconds: float = 60.0, allow_private: bool = False) -> bytes:
    """The whole content behind a URL.

    Args:
        url: http, https or data.
        name: what error messages call it; the URL itself may hold secrets and is never repeated.
        max_bytes: more than this is refused, as soon as it is known.
        timeout_seconds: for everything together, redirects included.
        allow_private: also talk to private, loopback and link-local addresses.

    Raises:
        MediaUnreadable: it cannot be fetched, is too large, or lies where it may not.
    """
    # Not split, for urlsplit remembers what it has split, and these may be large.
    if url[:5].lower() == "data:":
        return _inline(url, name, max_bytes)
    deadline = time.monotonic() + timeout_seconds
    for _ in range(MAX_REDIRECTS + 1):
        parts = _split(url, name)
        found = _get(parts, name=name, max_bytes=max_bytes, deadline=deadline, allow_private=allow_private)
        if isinstance(found, bytes):
            return found
        try:
            url = urljoin(url, found)
        except ValueError:
            raise MediaUnreadable(name, "leads to what is no web address") from None
        if not url.lower().startswith(("http:", "https:")):
            raise MediaUnreadable(name, "leads to what is no web address")
    raise MediaUnreadable(name, f"leads through more than {MAX_REDIRECTS} redirects")


def _split(url: str, name: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_good = False
    if not is_good:
        raise MediaUnreadable(name, "is no URL that can be fetched", hint="http, https and data are")
    return parts


def _inline(url: str, name: str, max_bytes: int) -> bytes:
    """data:[type][;parameters][;base64],content (RFC 2397); both encodings may be percent-encoded."""
    begin = url.find(",") + 1
    if not begin:
        raise MediaUnreadable(name, "is a data URL without content")
    if len(url) - begin > 3 * max_bytes:
        raise MediaUnreadable(name, f"is larger than {max_bytes} bytes")
    pieces = _unquoted(url, begin)
    if url[max(0, begin - 8) : begin].lower() == ";base64,":
        pieces = _from_base64(pieces)
    try:
        data = b"".join(pieces)
    except (binascii.Error, ValueError):
        raise MediaUnreadable(name, "is a data URL with broken base64") from None
    if len(data) > max_bytes:
        raise MediaUnreadable(name, f"is larger than {max_bytes} bytes")
    return data


def _unquoted(url: str, begin: int) -> Iterator[bytes]:
    """What a URL holds behind `begin`, with %XX as the byte that it stands for."""
    while begin < len(url):
        end = begin + _PIECE_LETTERS
        # A %XX is not cut in two.
        cut = url.find("%", end - 2, end)
        end = cut if begin < cut and end < len(url) else end
        yield unquote_to_bytes(url[begin:end])
        begin = end


def _from_base64(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes behind base64 with white space in it; ValueError where it is none."""
    rest, is_over = b"", False
    for piece in pieces:
        text = rest + b"".join(piece.split())
        whole = len(text) - len(text) % 4
        rest = text[whole:]
        if whole and is_over:
            raise ValueError("letters behind the end")
        is_over = is_over or text[:whole].endswith(b"=")
        yield b64decode(text[:whole], validate=True)
    if rest:
        raise ValueError("letters are missing")


def _get(parts: SplitResult, *, name: str, max_bytes: int, deadline: float, allow_private: bool) -> bytes | str:
    """The content, or where it has moved to."""
    address = _checked_address(parts, name=name, allow_private=allow_private)
    left = max(0.1, deadline - time.monotonic())
    connection = _Pinned(parts, address, timeout=left)
    # A socket's own limit begins anew with each byte, and headers are read in one go.
    alarm = threading.Timer(left, connection.break_off)
    alarm.daemon = True
    alarm.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"User-Agent": "omnireel", "Accept": "*/*"})
        # An answer that ends with its connection owns the socket, and is closed by nobody else.
        with connection.getresponse() as answer:
            return _taken(answer, name=name, max_bytes=max_bytes, deadline=deadline)
    except TimeoutError:
        raise MediaUnreadable(name, "took too long to fetch") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if time.monotonic() >= deadline:
            raise MediaUnreadable(name, "took too long to fetch") from None
        raise MediaUnreadable(name, f"cannot be fetched ({type(error).__name__})") from None
    finally:
        alarm.cancel()
        connection.close()


def _taken(answer: http.client.HTTPResponse, *, name: str, max_bytes: int, deadline: float) -> bytes | str:
    if answer.status in (301, 302, 303, 307, 308) and answer.headers.get("Location"):
        return str(answer.headers["Location"])
    if answer.status != 200:
        raise MediaUnreadable(name, f"cannot be fetched (the server answered {answer.status})")
    length = answer.headers.get("Content-Length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise MediaUnreadable(name, f"is larger than {max_bytes} bytes")
    content = _read(answer, name=name, max_bytes=max_bytes, deadline=deadline)
    # What was broken off ends like what is whole, and where the library counts it counts down.
    if answer.length:
        raise MediaUnreadable(name, f"broke off after {len(content)} bytes")
    return content


def _read(answer: http.client.HTTPResponse, *, name: str, max_bytes: int, deadline: float) -> bytes:
    content = bytearray()
    while piece := answer.read1(_CHUNK_BYTES):
        content += piece
        if len(content) > max_bytes:
            raise MediaUnreadable(name, f"is larger than {max_bytes} bytes")
        if time.monotonic() > deadline:
            raise MediaUnreadable(name, "took too long to fetch")
    if time.monotonic() > deadline:
        # Broken off by the alarm, which looks like an end.
        raise MediaUnreadable(name, "took too long to fetch")
    return bytes(content)


def _checked_address(parts: SplitResult, *, name: str, allow_private: bool) -> str:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise MediaUnreadable(name, "names a host that is not known") from None
    addresses = [str(entry[4][0]) for entry in found]
    # One bad address among good ones is a trick, not a mistake.
    if not allow_private and not all(_is_public(address) for address in addresses):
        raise MediaUnreadable(name, "lies on a private address", hint="only public addresses are fetched from")
    return addresses[0]


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    inner = _carried(address) if isinstance(address, ipaddress.IPv6Address) else None
    if inner is not None:
        address = inner
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return False
    return address.is_global and not address.is_multicast


def _carried(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that one of IPv6 leads to where a gateway translates: mapped, NAT64 (RFC 6052) or 6to4."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was checked, under the host's own name."""

    def __init__(self, parts: SplitResult, address: str, *, timeout: float) -> None:
        is_secure = parts.scheme == "https"
        super().__init__(parts.hostname or "", parts.port or (443 if is_secure else 80), timeout=timeout)
        self._address = address
        self._context = ssl.create_default_context() if is_secure else None

    def break_off(self) -> None:
        """Ends a read that another thread waits in."""
        with suppress(OSError, AttributeError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)
