"""A real headless Chromium, driven over its debugging pipe; without a driver, for there is none to install."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
PATIENCE_SECONDS = 60.0


class Page:
    """One tab. `asked` are the URLs that it asked for, `wrong` what scripts and the policy complained of."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = os.fdopen(reads, "rb"), os.fdopen(writes, "wb")
        self._number, self._session = 0, ""
        self.asked: list[str] = []
        self.wrong: list[str] = []
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "DOM"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """Runs a command of the DevTools protocol; what happens meanwhile is noted down."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._writes.write(json.dumps(message).encode() + b"\0")
        self._writes.flush()
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def go(self, url: str) -> None:
        """Opens a page."""
        self.command("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a script, promises awaited."""
        answer = self.command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Waits for a script to be true."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.run(f"!!({script})"):
            assert time.monotonic() < until, (script, self.wrong, self.run("document.body.innerText"))
            time.sleep(0.05)

    def give(self, selector: str, *files: Path) -> None:
        """Puts files into an input."""
        root = self.command("DOM.getDocument")["root"]["nodeId"]
        node = self.command("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.command("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def press(self, key: str, text: str = "") -> None:
        """A key of the keyboard."""
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "",
                         windowsVirtualKeyCode={"Tab": 9, "Enter": 13, " ": 32}.get(key, 0))  # fmt: skip

    def resize(self, width: int, height: int) -> None:
        """The window's size."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def picture(self, path: Path) -> None:
        """A screenshot as PNG."""
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))

    def _message(self) -> bytes:
        content = bytearray()
        while (letter := self._reads.read(1)) != b"\0":
            assert letter, "the browser is gone"
            content += letter
        return bytes(content)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.wrong.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.wrong.append(params["entry"]["text"])

    def close(self) -> None:
        """Lets the pipes go."""
        self._reads.close()
        self._writes.close()


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a browser with a profile of its own."""
    assert CHROMIUM is not None
    to_reads, to_writes = os.pipe()
    from_reads, from_writes = os.pipe()

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             "--no-first-run", "--disable-background-networking", f"--user-data-dir={folder}"]  # fmt: skip
    # Commands are read from the third and answers written to the fourth of its files.
    shell = f'exec "$@" 3<&{to_reads} 4>&{from_writes}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "browser", CHROMIUM, *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, pass_fds=(to_reads, from_writes),
    )  # fmt: skip
    os.close(to_reads)
    os.close(from_writes)
    page = Page(from_reads, to_writes)
    try:
        yield page
    finally:
        process.kill()
        process.wait()
        page.close()
