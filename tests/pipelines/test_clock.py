"""The line that shows how long something takes."""

import os
import pty
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from privstream.pipelines import console as clocks
from privstream.pipelines.console import clock


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Make a terminal of standard error; gives what was printed on it, when the block has ended."""
    ours, theirs = pty.openpty()
    kept, shown = os.dup(clocks.STANDARD_ERROR), [""]
    os.dup2(theirs, clocks.STANDARD_ERROR)
    try:
        yield shown
    finally:
        os.dup2(kept, clocks.STANDARD_ERROR)
        os.set_blocking(ours, False)
        with suppress(BlockingIOError):
            while True:
                shown[0] += os.read(ours, 1 << 16).decode()
        for file in (ours, theirs, kept):
            os.close(file)


def test_what_takes_long_shows_a_line_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(clocks, "DELAY_SECONDS", 0.01)
    with terminal() as shown, clock("adding [bold]up\x1b"):
        time.sleep(0.3)
    assert "adding [bold]up\\x1b" in shown[0] and "0:00:00" in shown[0]
    assert shown[0].endswith("\x1b[2K")  # the line is erased


def test_what_is_short_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminal() as shown, clock("adding up"):
        pass
    assert "adding" not in shown[0]


def test_nothing_is_shown_elsewhere(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "DELAY_SECONDS", 0.01)
    with pytest.raises(KeyError), clock("adding up"):
        time.sleep(0.1)
        raise KeyError
    assert capfd.readouterr() == ("", "")
