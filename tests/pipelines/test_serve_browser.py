"""The live page in a real browser: new windows appear, hostile names run nothing, all works without a mouse."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from example_results import HOSTILE, add_window, watched
from headless_browser import Chromium

PRIVSTREAM = "import sys; from privstream.pipelines.cli import main; sys.exit(main())"
TITLE = "privstream: live results"


@contextmanager
def served(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a folder, as a process of its own; give its address."""
    command = [sys.executable, "-c", PRIVSTREAM, "serve", str(folder), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stderr is not None
            (address,) = re.findall(r"http:\S+/", process.stderr.readline())
            yield address, process
        finally:
            process.terminate()


def has(text: str) -> str:
    """Return an expression that says whether the newest window of the only result has a text."""
    return f"document.querySelector('.now')?.textContent.includes({text!r}) || false"


@pytest.mark.slow
def test_a_window_appears_within_two_seconds_and_nothing_hostile_runs(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    windows = watched(tmp_path / "results", "counts")
    add_window(windows, 0, *HOSTILE)
    with served(tmp_path / "results") as (address, server), Chromium(tmp_path / "profile") as page:
        page.call("Page.navigate", url=address)
        page.wait(has("<script>"))
        page.wait("document.querySelectorAll('figure option').length > 1")

        page.run("document.querySelector('details:last-of-type').open = true")
        page.run("document.querySelector('input').focus()")
        page.call("Input.insertText", text="new 2")
        delays = []
        for hour in range(1, 4):
            add_window(windows, hour, f"new {hour}")
            delays.append(page.wait(has(f"new {hour}")))
        print(f"a window is on the page after {[round(delay, 2) for delay in delays]} s")
        assert min(delays) < 2
        page.wait("document.querySelector('.found').textContent.startsWith('1 of ')")
        assert page.run("document.activeElement.value") == "new 2"

        page.run("document.activeElement.blur()")
        reached = []
        for _ in range(12):
            page.press("Tab")
            reached.append(page.run("document.activeElement.id || document.activeElement.tagName"))
        assert {"pause", "A", "SELECT", "svg", "SUMMARY", "INPUT"} <= set(reached)
        page.run("document.querySelector('figure svg').focus()")
        page.press("ArrowRight")
        assert page.run("document.querySelector('.tip').textContent").endswith("± 9")
        page.run("document.getElementById('pause').focus()")
        page.press(" ", text=" ")
        assert page.run("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
        page.press(" ", text=" ")

        inline = "Object.assign(document.createElement('script'), { textContent: 'document.title = 1' })"
        page.run(f"document.body.append({inline})")
        assert page.run("document.title") == TITLE
        loaded = page.run("performance.getEntriesByType('resource').map((one) => one.name)")
        assert len(loaded) > 4 and all(name.startswith((address, "data:")) for name in loaded)
        assert not [event for event in page.events if event["method"] == "Runtime.exceptionThrown"]

        server.terminate()
        page.wait("document.getElementById('said').classList.contains('away')")
