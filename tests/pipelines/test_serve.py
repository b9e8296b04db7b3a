"""`privstream serve`: what is shown of a folder, to whom, and what its files can do to the page."""

import json
import os
import re
import threading
import urllib.request
from pathlib import Path

import pytest
from example_results import HOSTILE, add_window, watched, write
from headless_browser import Chromium
from privstream.pipelines.report import result
from privstream.pipelines.report.commands import LivePage, is_local, listen


def text_of(page: str) -> str:
    """Return a page without its markup, in one line."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition("<body>")[2].partition("<script>")[0]).split())


def test_a_window_is_shown_as_soon_as_its_file_is_there(tmp_path: Path) -> None:
    windows = watched(tmp_path, "heavy-hitters")
    page = LivePage(str(tmp_path))
    assert "does not mean that numbers are 0" in text_of(page.page()) and "<figure" not in page.page()
    before = page.version()
    add_window(windows, 5, "tea", "night market")
    assert page.version() != before and page.version() == page.version()
    assert "night market" in text_of(page.page()) and page.page().count("<figure") == 1
    assert "Running" in text_of(page.page())
    (windows / "_END").touch()
    assert "Running" not in text_of(page.page())
    assert f'data-version="{page.version()}"' in page.page()


def test_a_huge_folder_shows_its_newest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "MOST_FILES", 20)
    windows = watched(tmp_path, "counts")
    first = add_window(windows, 0, "tea")
    for number in range(1, 90):
        os.link(first, windows / f"2023{number:04}T000000Z.jsonl")
    assert "The newest 20 files are shown" in text_of(LivePage(str(tmp_path)).page())


def test_half_written_files_do_no_harm(tmp_path: Path) -> None:
    windows = watched(tmp_path, "counts")
    whole = add_window(windows, 0, "tea")
    content = whole.read_bytes()
    (windows / "20240101T010000Z_20240101T020000Z.jsonl").write_bytes(content[:-20])
    (windows / "20240101T020000Z_20240101T030000Z.parquet").write_bytes(b"PAR1")
    (windows / f".{whole.name}.0011.partial").write_bytes(content[:5])
    os.mkfifo(windows / "20240101T040000Z.jsonl")
    page = LivePage(str(tmp_path))
    assert ">tea<" in page.page() and "cannot be read now: 2" in page.page()
    whole.write_bytes(content.replace(b"tea", b"milk"))
    assert ">milk<" in page.page() and ">tea<" not in page.page()


@pytest.mark.parametrize("guarantee", ['{"made_by"', "[]", "{}", '{"made_by": {"command": "privstream oracle"}}'])
def test_a_result_without_a_good_guarantee_is_not_shown(guarantee: str, tmp_path: Path) -> None:
    write(tmp_path, "heavy-hitters")
    promise = Path(f"{write(tmp_path, 'counts')}.guarantee.json")
    good = promise.read_text()
    promise.write_text(guarantee)
    page = LivePage(str(tmp_path))
    assert page.page().count("<section id=") == 1 and "cannot be read now" in page.page()
    promise.write_text(good)
    assert page.page().count("<section id=") == 2


def test_what_is_no_result_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "counts")
    for name in ("events.parquet", "truth.jsonl", "letters/20240101T000000Z.jsonl", "key", "a.guarantee.json.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"user": "u000042"}\n')
    opened: list[str] = []
    monkeypatch.setattr(result, "read_file", lambda file, *given: opened.append(Path(file).name) or [])
    assert "u000042" not in LivePage(str(tmp_path)).page()
    assert opened == ["counts.jsonl"]


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost:80", True), ("127.0.0.1", True), ("[::1]:8080", True), ("evil.example", False), ("", False)],
)
def test_only_this_machine_may_ask(host: str, local: bool, tmp_path: Path) -> None:
    assert is_local(host) == local
    assert LivePage(str(tmp_path)).answer("/", host)[0] == (200 if local else 403)


def test_a_server_answers_on_loopback(tmp_path: Path) -> None:
    write(tmp_path, "counts")
    with listen(LivePage(str(tmp_path)), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(address) as page:
            assert "connect-src &#39;self&#39;" in page.read().decode()
            assert page.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/../key")
        server.shutdown()


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_a_browser_follows_a_run_runs_no_other_script_and_shows_all_in_a_narrow_window(tmp_path: Path) -> None:
    windows = watched(tmp_path, "counts")
    for hour in range(9):
        add_window(windows, hour, HOSTILE[0], "tea")
    with listen(LivePage(str(tmp_path)), 0) as server, Chromium(tmp_path / "profile") as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        browser.call("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/")
        browser.wait("document.readyState == 'complete'")
        assert browser.run("document.title").startswith("Differentially private results")
        outside = """JSON.stringify([...document.querySelectorAll("body *")].filter(
            (one) => one.getBoundingClientRect().right > 391 && !one.parentElement.closest(".scroll")
        ).map((one) => one.tagName))"""
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert json.loads(browser.run(outside)) == []
        add_window(windows, 9, "a late comer")
        browser.wait("document.body?.textContent.includes('a late comer')")
        assert browser.run("document.querySelector('details')?.open"), "what was open stays open"
        server.shutdown()
