"""`privstream serve`: what is answered, to whom, what a folder can do to it, and the page in a real browser."""

import base64
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from apache_beam.utils.timestamp import Timestamp
from example_results import HOSTILE, add_window, row_of, watched, write
from headless_browser import Chromium
from privstream.pipelines import cli
from privstream.pipelines.accounts.spending import Limit
from privstream.pipelines.questions.catalogue import WORDS
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.serve import folder as watching
from privstream.pipelines.serve.app import Access, is_loopback
from privstream.pipelines.serve.folder import WatchedFolder
from privstream.pipelines.serve.health import Health, about, samples
from privstream.pipelines.serve.page import reading
from privstream.pipelines.sinks.row_files import write_row_file
from privstream.transforms import HeavyHitter
from privstream.transforms import rows as row_types

pages = pytest.importorskip("privstream.pipelines.serve.page")
apps = pytest.importorskip("privstream.pipelines.serve.app")

TOKEN, OPERATORS = b"0123456789abcdef", b"fedcba9876543210"
OPEN = Access(local=True, token=None, operator_token=None)
METRICS = """\
# HELP flink_taskmanager_job_task_operator_privstream_events_late privstream_events_late
flink_taskmanager_job_task_operator_privstream_events_late{job_name="to \\"rows\\"",subtask_index="0",} 3.0
flink_taskmanager_job_task_operator_privstream_events_late{job_name="to \\"rows\\"",subtask_index="1",} 4.0
flink_taskmanager_job_task_operator_privstream_events{job_name="to \\"rows\\"",subtask_index="1",} 1234.0
flink_taskmanager_job_task_operator_currentOutputWatermark{job_name="to \\"rows\\"",} WATERMARK
flink_jobmanager_job_numRestarts{job_id="00",job_name="to \\"rows\\"",} 2.0
flink_jobmanager_numRegisteredTaskManagers{host="localhost",} 2.0
"""


class Answered(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str


class Site:
    """An application that is asked directly, with a clock that tests move on."""

    def __init__(self, folder: Path, access: Access = OPEN, **given: Any) -> None:
        self.now = 0.0
        options: dict[str, Any] = {"accounts": None, "limit": None, "health": None, "version": "0.1.0"}
        self.page = pages.Page(WatchedFolder(str(folder), lambda: self.now), **(options | given))
        self.app = apps.App(self.page, access)

    def ask(self, path: str, token: bytes | None = None, method: str = "GET", host: str = "localhost:8080") -> Answered:
        self.now += 1
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": host}
        if token is not None:
            environ["HTTP_AUTHORIZATION"] = "Basic " + base64.b64encode(b"anybody:" + token).decode()
        got: list[Any] = []
        body = b"".join(self.app(environ, lambda status, headers: got.extend((status, headers))))
        return Answered(int(got[0].split()[0]), dict(got[1]), body.decode())

    @property
    def state(self) -> dict[str, Any]:
        """What the script of the page asks for."""
        answered = self.ask("/state")
        assert answered.status == 200
        found: dict[str, Any] = json.loads(answered.body)
        return found

    def sections(self) -> list[str]:
        return [self.ask(f"/results/{one['id']}").body for one in self.state["results"]]

    def section(self) -> str:
        """Return the piece of the only result."""
        (only,) = self.sections()
        return only


def text_of(piece: str) -> str:
    """Return a piece without its markup, in one line."""
    return " ".join(re.sub(r"<[^>]*>", " ", piece).split())


def test_proofs_are_links_where_the_site_is_known(tmp_path: Path) -> None:
    watched(tmp_path, "heavy-hitters")
    link = 'href="https://localhost/privstream/proofs/clock.html"'
    assert link in Site(tmp_path, docs="https://localhost/privstream").section()
    assert "<a " not in Site(tmp_path).section()


def test_a_window_is_shown_as_soon_as_its_file_is_there(tmp_path: Path) -> None:
    windows = watched(tmp_path, "heavy-hitters")
    site = Site(tmp_path)
    assert "No heavy hitters were published so far." in text_of(site.section())
    before = site.state["results"]
    for hour in range(6):
        add_window(windows, hour, "tea", "night market")
    piece = text_of(site.section())
    assert (
        "Now: 2024-01-01 05:00 to 06:00 UTC night market 105 (between 90 and 200)" in piece
        or "UTC tea 105 (between" in piece
    )
    assert "Before: 2024-01-01 04:00 to 05:00 UTC" in piece and "Before: 2024-01-01 01:00" not in piece
    assert "Running." in piece
    (after,) = site.state["results"]
    assert after["version"] != before[0]["version"] and (before[0]["pictures"], after["pictures"]) == (0, 1)
    picture = site.ask(f"/results/{after['id']}/pictures/0").body
    assert "data:image/svg+xml;base64," in picture and "night market" in picture
    (windows / "_END").touch()
    assert "Complete." in text_of(site.section())


def test_windows_before_are_drawn_again_with_an_item_that_is_found_later(tmp_path: Path) -> None:
    """Its rows of windows before come in the file of the window in which it was found."""
    windows = watched(tmp_path, "counts")
    site = Site(tmp_path)
    for hour in range(3):
        add_window(windows, hour, "tea")
    assert "mint" not in text_of(site.section())
    (before,) = site.state["results"]
    path = add_window(windows, 3, "tea")
    reported = row_of("counts", 3, "mint").reported_at
    found = [
        row_of("counts", hour, "mint")._replace(reported_at=reported, backfilled=hour < 3, count=200 + hour)
        for hour in range(4)
    ]
    write_row_file(str(path), type(found[0]), [*found, row_of("counts", 3, "tea")])
    piece = text_of(site.section())
    assert "UTC mint 203 (between 90 and 200)" in piece and re.search(
        r"Before: 2024-01-01 02:00 to 03:00 UTC .*mint 202 \(between 90 and 200\)", piece
    )
    (after,) = site.state["results"]
    assert after["version"] != before["version"]
    assert "mint" in site.ask(f"/results/{after['id']}/pictures/0").body


def test_a_folder_of_windows_itself_is_a_result(tmp_path: Path) -> None:
    windows = watched(tmp_path, "counts")
    add_window(windows, 0, "tea")
    assert "tea 100 (between 90 and 200)" in text_of(Site(windows).section())


@pytest.mark.parametrize("word", WORDS)
def test_every_question_is_shown_with_its_bands(word: str, tmp_path: Path) -> None:
    write(tmp_path, word)
    site = Site(tmp_path)
    piece = text_of(site.section())
    assert "Now:" in piece and "epsilon = 1, delta = 1e-06" in piece
    assert re.search(r"±|between 90 and 200|error bound", piece)
    assert "<figure" in site.ask(f"/results/{site.state['results'][0]['id']}/pictures/0").body


@pytest.mark.parametrize("format", ["avro", "parquet", "csv"])
def test_all_formats_are_read(format: str, tmp_path: Path) -> None:
    add_window(watched(tmp_path, "cardinality"), 1, "", format=format)
    assert "101 (" in text_of(Site(tmp_path).section())


def test_only_what_has_changed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = watched(tmp_path, "counts")
    read: list[str] = []
    real = watching.read_file
    monkeypatch.setattr(watching, "read_file", lambda file, spec: read.append(file) or real(file, spec))
    for hour in range(30):
        add_window(windows, hour, "tea")
    site = Site(tmp_path)
    site.section()
    assert len(read) == 30
    site.section()
    new = add_window(windows, 30, "tea")
    site.section()
    assert read[30:] == [str(new)]


def test_a_huge_folder_shows_its_newest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_FILES", 20)
    windows = watched(tmp_path, "counts")
    first = add_window(windows, 0, "tea")
    for number in range(1, 2000):
        os.link(first, windows / f"2023{number:04}T000000Z.jsonl")
    site = Site(tmp_path)
    assert "The newest 20 files are shown; 1,980 more are in the folder." in text_of(site.section())
    began = time.monotonic()
    site.ask("/state")
    assert time.monotonic() - began < 1


def test_a_look_asks_for_the_newest_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_FILES", 20)
    windows = watched(tmp_path, "counts")
    first = add_window(windows, 0, "tea")
    for number in range(1, 200):
        os.link(first, windows / f"2023{number:04}T000000Z.jsonl")
    asked: list[str] = []
    real = watching.stamp_of
    monkeypatch.setattr(watching, "stamp_of", lambda path: asked.append(path) or real(path))
    site = Site(tmp_path)
    assert "180 more are in the folder" in text_of(site.section())
    asked.clear()
    before = site.state
    assert len(asked) < 25
    os.link(first, windows / "20220101T000000Z.jsonl")
    assert "181 more are in the folder" in text_of(site.section()) and site.state != before


def test_results_that_go_on_are_shown_before_newer_ones_that_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "MOST_RESULTS", 2)
    monkeypatch.setattr(watching, "MORE_RESULTS", "{} more")
    windows = watched(tmp_path, "counts")
    for age, word in ((9, "top-k"), (8, "cardinality")):
        write(tmp_path, word)
        os.utime(tmp_path / f"{word}.jsonl.guarantee.json", (time.time() - age,) * 2)
    os.utime(windows / "_guarantee.json", (0, 0))
    os.utime(windows, (0, 0))
    site = Site(tmp_path)
    shown = {one["title"] for one in site.state["results"]}
    assert shown == {"top-k: top-k.jsonl", "cardinality: cardinality.jsonl"} and site.state["notes"] == ["1 more"]
    add_window(windows, 0, "tea")
    assert {one["title"] for one in site.state["results"]} == {"counts: counts", "cardinality: cardinality.jsonl"}


def test_half_written_files_do_no_harm(tmp_path: Path) -> None:
    windows = watched(tmp_path, "counts")
    whole = add_window(windows, 0, "tea")
    content = whole.read_bytes()
    (windows / "20240101T010000Z_20240101T020000Z.jsonl").write_bytes(content[:-20])
    (windows / "20240101T020000Z_20240101T030000Z.parquet").write_bytes(b"PAR1")
    (windows / "20240101T030000Z_20240101T040000Z.avro").touch()
    (windows / f".{whole.name}.0011.partial").write_bytes(content[:5])
    os.mkfifo(windows / "20240101T040000Z.jsonl")
    site = Site(tmp_path)
    piece = text_of(site.section())
    assert "tea 100 (between 90 and 200)" in piece and "3 of its files cannot be read now" in piece
    (windows / "20240101T010000Z_20240101T020000Z.jsonl").write_bytes(content.replace(b"tea", b"milk"))
    piece = text_of(site.section())
    assert "milk 100 (between 90 and 200)" in piece and "2 of its files" in piece


def test_a_file_that_is_written_over_stays_as_it_was_until_it_is_whole(tmp_path: Path) -> None:
    path = write(tmp_path, "counts")
    site = Site(tmp_path)
    content = path.read_bytes()
    assert "tea" in site.section()
    path.write_bytes(content[: len(content) // 2 - 3])
    piece = site.section()
    assert "<td>tea</td>" in piece and "1 of its files cannot be read now" in piece
    path.write_bytes(content.replace(b"tea", b"milk"))
    piece = site.section()
    assert "<td>milk</td>" in piece and "<td>tea</td>" not in piece and "cannot be read now" not in piece


@pytest.mark.parametrize("guarantee", ['{"made_by"', "[]", "{}", '{"made_by": {"command": "privstream oracle"}}'])
def test_a_result_without_a_good_guarantee_is_not_shown(guarantee: str, tmp_path: Path) -> None:
    promise = Path(f"{write(tmp_path, 'counts')}.guarantee.json")
    good = promise.read_text()
    promise.write_text(guarantee)
    site = Site(tmp_path)
    piece = site.section()
    assert "Its guarantee file is not complete" in piece and "tea" not in piece
    promise.write_text(good)
    assert "tea" in site.section()


def test_what_is_no_result_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "counts")
    for name in ("events.parquet", "truth.jsonl", "letters/20240101T000000Z.jsonl", "key", "a.guarantee.json.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"user": "u000042"}\n')
    opened: list[str] = []
    monkeypatch.setattr(watching, "read_file", lambda file, spec: opened.append(Path(file).name) or [])
    site = Site(tmp_path)
    assert "u000042" not in "".join(site.sections()) + json.dumps(site.state)
    assert opened == ["counts.jsonl"]


def test_mixed_results_are_shown_side_by_side(tmp_path: Path) -> None:
    for word in WORDS:
        write(tmp_path, word)
    wrong = write(tmp_path, "counts")
    write_row_file(str(wrong), row_types.NearestPoints, [row_of("predecessor", 0, "")])
    pieces = Site(tmp_path).sections()
    assert len(pieces) == len(WORDS)
    assert sum("cannot be read now" in piece for piece in pieces) == 1


@pytest.mark.parametrize("change", [{"count": "many"}, {"count": None}, {"window_end": "soon"}, {"count_stddev": []}])
def test_rows_of_wrong_types_are_not_shown(change: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path, "counts")
    path.write_text(json.dumps(json.loads(path.read_text().splitlines()[0]) | change) + "\n")
    assert "1 of its files cannot be read now" in Site(tmp_path).section()


def test_a_folder_that_vanishes_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    write(folder, "counts")
    site = Site(folder)
    assert "tea" in site.section()
    folder.rename(tmp_path / "away")
    assert site.state["notes"] == ["The folder cannot be read. What was there before is shown."]
    assert "tea" in site.section()
    (tmp_path / "away").rename(folder)
    assert site.state["notes"] == []
    (folder / "counts.jsonl").unlink()
    assert "Its file has gone." in site.section()
    (folder / "counts.jsonl.guarantee.json").unlink()
    assert site.state["results"] == []


def test_hostile_names_are_text(tmp_path: Path) -> None:
    write(tmp_path, "counts", tuple(HOSTILE))
    path = tmp_path / "x' onclick='1.jsonl"
    (tmp_path / "counts.jsonl").rename(path)
    (tmp_path / "counts.jsonl.guarantee.json").rename(f"{path}.guarantee.json")
    site = Site(tmp_path)
    pieces = site.section() + site.ask(f"/results/{site.state['results'][0]['id']}/pictures/0").body
    tags = re.findall(r"<(\w+)((?:[^\"'>]|\"[^\"]*\"|'[^']*')*)>", pieces)
    assert not {name for name, _ in tags} & {"script", "style", "iframe", "object"}
    assert not [given for _, given in tags if re.search(r"\son\w+=", re.sub(r"\"[^\"]*\"", "", given))]
    assert "&lt;script&gt;document.title=" in pieces
    assert not set(pieces) & set("\u2028\u2029\u202e\u2066\x1b")


def test_the_browser_is_told_to_run_nothing_else(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for path in ("/", "/state", "/cost", "/live.js", "/nowhere"):
        headers = site.ask(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    frame = site.ask("/").body
    assert not re.search(r"<script(?! src=\"/)|<style|\son\w+=|https?:", frame)
    for name in re.findall(r"(?:src|href)=\"(/[^\"]+)\"", frame):
        assert site.ask(name).status == 200


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/", "HEAD", "127.0.0.1:8080", 200),
        ("/", "GET", "[::1]:8080", 200),
        ("/", "POST", "localhost", 405),
        ("/", "GET", "127.0.0.2:8080", 200),
        ("/", "GET", "[::1]:8080", 200),
        ("/", "GET", "192.0.2.1:8080", 403),
        ("/", "GET", "rebound.example:8080", 403),
        ("/", "GET", "", 403),
        ("/", "GET", "[::1", 403),
        ("/operator", "GET", "localhost", 404),
        ("/results/0123456789abcdef", "GET", "localhost", 404),
        ("/results/0123456789abcdef/pictures/0", "GET", "localhost", 404),
        ("/../key", "GET", "localhost", 404),
        ("/key", "GET", "localhost", 404),
    ],
)
def test_what_is_asked_for(path: str, method: str, host: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    answered = Site(tmp_path).ask(path, method=method, host=host)
    assert answered.status == status and "secret" not in answered.body
    assert bool(answered.body) == (method != "HEAD")


def test_elsewhere_a_token_decides(tmp_path: Path) -> None:
    write(tmp_path, "counts")
    site = Site(tmp_path, Access(local=False, token=TOKEN, operator_token=None))
    for path in ("/", "/state", "/cost", "/live.js", "/nowhere"):
        for token in (None, b"", b"0123456789abcdeg", TOKEN[:-1], TOKEN + b"0"):
            answered = site.ask(path, token, host="results.example")
            assert answered.status == 401 and answered.headers["WWW-Authenticate"].startswith("Basic ")
    assert site.ask("/state", TOKEN, host="results.example").status == 200
    for header in ("Basic ???", "Bearer " + TOKEN.decode(), "Basic", ""):
        assert not site.app._access.accepts(header, operator=False)


def test_health_is_for_operators_alone(tmp_path: Path) -> None:
    letters = tmp_path / "letters"
    letters.mkdir()
    (letters / "20240101T000000Z.jsonl").write_text("x" * 1234)
    health = Health((), str(letters))
    site = Site(tmp_path, Access(local=True, token=TOKEN, operator_token=OPERATORS), health=health)
    for token in (None, TOKEN):
        assert site.ask("/operator", token).status == site.ask("/operator/health", token).status == 401
    assert site.ask("/", OPERATORS).status == 200
    assert 'id="health"' in site.ask("/operator", OPERATORS).body and 'id="health"' not in site.ask("/", TOKEN).body
    assert "Dead letters: files: 1, bytes: 1,234, last one: " in text_of(site.ask("/operator/health", OPERATORS).body)
    assert "1,234" not in site.ask("/state", TOKEN).body + site.ask("/cost", TOKEN).body


@pytest.mark.parametrize(
    ("watermark", "lag"),
    [
        ("-9.223372036854775808E18", "not all steps have seen an event"),
        ("9.223372036854775807E18", "none: the input has ended"),
        ("1.0E12", r"[\d,]+ days"),
    ],
)
def test_health_of_jobs(watermark: str, lag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"http://127.0.0.1:1/metrics": METRICS.replace("WATERMARK", watermark), "http://127.0.0.1:2/metrics": None}
    monkeypatch.setattr("privstream.pipelines.serve.health._ask", asked.get)
    site = Site(
        tmp_path, Access(local=True, token=None, operator_token=OPERATORS), health=Health(tuple(asked), folder=None)
    )
    piece = text_of(site.ask("/operator/health", OPERATORS).body)
    assert re.search(rf"to &#34;rows&#34; {lag} 1,234 none yet none yet 7 2", piece), piece
    assert "No answer from http://127.0.0.1:2/metrics." in piece


def test_only_numbers_about_jobs_are_read() -> None:
    found = list(samples(METRICS.replace("WATERMARK", "1")))
    assert len(found) == 5 and {sample.job for sample in found} == {'to "rows"'}
    assert [about(seconds) for seconds in (-1, 1, 119, 7_199, 1e6)] == [
        "0 seconds",
        "1 second",
        "119 seconds",
        "119 minutes",
        "11 days",
    ]


def test_what_is_spent_and_left(tmp_path: Path) -> None:
    write(tmp_path, "counts")
    accounts = Accounts.of(str(tmp_path / "key.ledger.jsonl"), None)
    site = Site(tmp_path, accounts=accounts, limit=Limit(4.0))
    piece = text_of(site.ask("/cost").body)
    assert "Data set shop" in piece and "1 release is recorded" in piece and piece.count(" 3 ") == 1
    version = site.state["cost"]
    write(tmp_path, "flags")
    assert site.state["cost"] != version
    assert "2 releases are recorded" in text_of(site.ask("/cost").body)
    assert "secretdigest" not in "".join(site.sections())
    assert "without a ledger" in Site(tmp_path).ask("/cost").body


def test_results_that_the_ledger_does_not_have_are_shown_and_said(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", "flags")
    write(tmp_path, "counts")
    site = Site(tmp_path, accounts=Accounts.of(str(tmp_path / "other" / "key.ledger.jsonl"), None))
    assert pages.NOT_IN_LEDGER in site.section() and "tea" in site.section()


def test_numbers_do_not_wait_for_pictures(tmp_path: Path) -> None:
    write(tmp_path, "counts")
    site = Site(tmp_path)
    (one,) = site.state["results"]
    with site.page._drawing, site.page._adding:
        assert site.ask(f"/results/{one['id']}/pictures/0").status == site.ask("/cost").status == 503
        assert "tea" in site.section()
    assert site.ask(f"/results/{one['id']}/pictures/0").status == site.ask("/cost").status == 200


def test_one_result_that_cannot_be_shown_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "counts")
    site = Site(tmp_path)
    monkeypatch.setattr(pages, "words_of", lambda *_: 1 / 0)
    assert "This result cannot be shown" in site.section()


@pytest.mark.parametrize(
    "content",
    [
        '{"made_by": {"command": "privstream counts"}, "guarantee": [], "parameters": {}}',
        '{"made_by": {"command": "privstream counts"}, "guarantee": {"epsilon": 1%s}, "parameters": {}}' % ("0" * 400),
        "[]",
    ],
)
def test_a_guarantee_of_another_form_hides_no_other_result(tmp_path: Path, content: str) -> None:
    write(tmp_path, "counts")
    (tmp_path / "wrong.jsonl").write_text("")
    (tmp_path / "wrong.jsonl.guarantee.json").write_text(content)
    (tmp_path / "loop").symlink_to("loop")
    assert len(Site(tmp_path).state["results"]) == 2


def test_a_number_that_was_not_counted_is_shown_as_none() -> None:
    window = Timestamp(0), Timestamp(3600)
    row = HeavyHitter.in_time("", *window, "tea", None, None, Timestamp(0), "continues")
    assert reading(row, "count") == "no count"


def test_an_error_does_not_say_why(tmp_path, monkeypatch, capsys):
    def fail(*given: object) -> None:
        raise RuntimeError("u000042")

    write(tmp_path, "counts")
    site = Site(tmp_path)
    monkeypatch.setattr(pages.Page, "_result", fail)
    (one,) = site.state["results"]
    answered = site.ask(f"/results/{one['id']}")
    told = capsys.readouterr().err
    assert answered.status == 500 and "u000042" not in answered.body + told
    assert told == "privstream serve: RuntimeError while a result was made\n"


@pytest.fixture
def token_file(tmp_path: Path) -> Callable[..., str]:
    def make(name: str, content: bytes = TOKEN, mode: int = 0o600) -> str:
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)
        return str(tmp_path / name)

    return make


def test_what_would_show_too_much_is_refused(tmp_path, token_file, capsys):
    good, same = token_file("good"), token_file("same")
    cases = {
        ("--host", "0.0.0.0"): "--token_file must be given when host is not loopback",
        ("--host", ""): "--host must be a name or an address of this machine",
        ("--host", "no.such.host.invalid"): "--host must be a name or an address of this machine",
        ("--dead_letter", str(tmp_path)): "--operator_token_file must be given with metrics or dead_letter",
        ("--operator_token_file", good): "there is nothing else to see",
        ("--host", "0.0.0.0", "--token_file", good, "--operator_token_file", token_file("b", OPERATORS)): (
            "--operator_token_file must not be given when host is not loopback"
        ),
        ("--token_file", good, "--operator_token_file", same): "must have another token than token_file",
        ("--token_file", token_file("seen", mode=0o644)): "--token_file must be readable by its owner alone",
        ("--token_file", token_file("short", b"0123456789abcde")): "--token_file must have one token of 16",
        ("--token_file", token_file("space", b"0123456789 abcdefgh")): "--token_file must have one token of 16",
        ("--token_file", str(tmp_path / "none")): "--token_file must be a readable file",
        ("--metrics", "file:///etc/hostname", "--operator_token_file", good): "--metrics must be addresses such as",
        ("--ledger", str(tmp_path / "none")): "--ledger must be a file that can be read",
        ("--budget_limit", "4"): "--budget_limit must be given with --ledger",
        ("--port", "65536"): "--port must be <= 65,535",
        ("--port", "-1"): "--port must be >= 0",
        ("--docs", "javascript:alert(1)"): "--docs must be an address such as",
    }
    for options, message in cases.items():
        assert cli.main(["serve", str(tmp_path), *options]) == 2
        told = capsys.readouterr().err
        assert message.replace("--", "") in told.replace("--", "") and told.count("\n") == 1, (options, told)
        assert TOKEN.decode() not in told
    assert cli.main(["serve", str(tmp_path / "none")]) == 2
    assert "FOLDER must be a folder that exists" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", str(tmp_path), "--port", str(port)]) == 2
    assert f"--port must be free, got {port} of 127.0.0.1" in capsys.readouterr().err


def test_loopback_is_known() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "0.0.0.0", "::")] == [True, True, False, False]


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
        assert page.run("document.querySelector('.tip').textContent").endswith("(between 90 and 200)")
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
