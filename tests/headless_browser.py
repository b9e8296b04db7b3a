"""Headless Chromium: where it is, and how to speak with it through a pipe, without a port and without a driver."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
SECONDS = 60.0


def browser() -> str:
    """Return the browser of this machine; without one the calling test is skipped, or fails where it must be there."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None and os.environ.get("PRIVSTREAM_REQUIRE_RUNNERS"):
        pytest.fail("chromium is required here: apt-get install chromium", pytrace=False)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return found


class Chromium:
    """A browser with one page; it speaks the DevTools protocol on file descriptors 3 and 4.

    Args:
        profile: a folder of its own.
    """

    def __init__(self, profile: Path) -> None:
        from_here, self._to = os.pipe()
        self._from, to_here = os.pipe()
        os.set_blocking(self._from, False)
        given = [browser(), *OPTIONS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{from_here} 4>&{to_here}', "bash", *given],
            pass_fds=(from_here, to_here),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_here)
        os.close(to_here)
        self._read, self._number = b"", 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while b"\0" not in self._read:
            ready = select.select([self._from], [], [], max(0.0, until - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            more = os.read(self._from, 1 << 20)
            assert more, "the browser has ended"
            self._read += more
        one, _, self._read = self._read.partition(b"\0")
        found: dict[str, Any] = json.loads(one)
        return found

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = SECONDS) -> float:
        """Wait until an expression is true; return how long that took."""
        began = time.monotonic()
        while not self.run(script):
            assert time.monotonic() - began < seconds, f"never true: {script}"
            time.sleep(0.02)
        return time.monotonic() - began
