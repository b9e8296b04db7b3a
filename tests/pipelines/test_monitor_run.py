"""A monitor runs: one reading, one guarantee, one entry of the ledger, and each question as by its own command."""

import json
import random
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.guarantee import read_guarantee_file
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.report.result import results_in
from privstream.pipelines.run import run as runs

EXAMPLE = """\
data: {input: clicks.csv, user: customer, time: ts}
windows: {window: 1h, start: 2026-01-01, end: 2026-01-01T04:00, renew_every: 2h}
privacy: {epsilon: 8, delta: 1.0e-6}
questions:
  pages:   {question: counts, item: [country, page], share: 3, max_contributions: 20}
  latency: {question: quantiles, value: ms, low: 1, high: 60000, quantiles: [0.5, 0.99], max_contributions: 20}
  present: {question: cardinality, timeout: 30m}
account: {key: noise.key}
output: {path: out, dead_letter: bad.jsonl}
"""
"""The example of the documentation, about files."""

QUICK = """\
data: {input: clicks.csv, user: customer, time: ts}
windows: {window: 1h, start: 2026-01-01, end: 2026-01-01T04:00}
privacy: {epsilon: 8, delta: 1.0e-6}
questions:
  slow:    {question: quantiles, value: ms, low: 1, high: 60000, max_contributions: 4, where: ms > 300}
  present: {question: cardinality, timeout: 30m}
account: {key: noise.key}
output: {path: out}
"""


OPTIONS = ["epsilon", "delta", "window", "start", "end", "renew_every", "max_contributions", "low", "high", "timeout"]


def write_clicks(folder: Path, number: int) -> None:
    draw = random.Random(7)
    lines = ["customer,country,page,ts,ms"]
    for row in range(number):
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=draw.random() * 4 * 3600)
        value = "" if row % 10 == 0 else f"{draw.expovariate(1 / 200) + 1:.0f}"
        place = f"{draw.choice(['de', 'fr'])},/{draw.choice('ab')}"
        lines.append(f"c{draw.randrange(number // 4)},{place},{moment.isoformat()},{value}")
    lines.append("c1,de,/a,,5")
    (folder / "clicks.csv").write_text("\n".join(lines) + "\n")
    (folder / "noise.key").write_bytes(bytes(range(32)))
    (folder / "noise.key").chmod(0o600)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_clicks(tmp_path, 400)
    return tmp_path


def run(text: str, *words: str) -> int:
    Path("monitor.yaml").write_text(text)
    return cli.main(["run", "monitor.yaml", *words])


def refused(text: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(text, *words) == 2
    assert not list(Path().glob("out/*.csv")) and not list(Path().glob("*.ledger.jsonl"))
    return capsys.readouterr().err


def same_as_single(monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> None:
    """Compare the rows of each question with those of its own command that is given the same noise."""
    whole = json.loads(Path("out/_guarantee.json").read_text())
    (entry,) = Ledger("noise.key.ledger.jsonl").contents().entries
    for name, words in more.items():
        own = json.loads(Path(f"out/{name}.csv.guarantee.json").read_text())["parameters"]
        given = {option: own[option] for option in OPTIONS if own.get(option) is not None}
        if "quantiles" in own:
            given["quantiles"] = ",".join(map(str, own["quantiles"]))
        noise = KeyedNoise.from_file("noise.key", entry.label).derive("question", name)
        monkeypatch.setattr(runs, "noise_source", lambda *_, noise=noise: noise)
        options = " ".join(f"--{option} {value}" for option, value in given.items())
        question = whole["questions"][name]
        call = f"{question['question']} --input clicks.csv --output {name}.csv --user customer --time ts"
        assert cli.main(shlex.split(f"{call} --run_id one --ledger none {options} {words}")) == 0
        assert Path(f"{name}.csv").read_bytes() == Path(f"out/{name}.csv").read_bytes()


def test_one_question_is_a_monitor_too(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("".join(line for line in QUICK.splitlines(keepends=True) if "slow" not in line)) == 0
    assert capsys.readouterr().err.startswith("400 of 401 rows used")
    found = sorted(path.name for path in Path("out").iterdir())
    assert found == ["_guarantee.json", "present.csv", "present.csv.guarantee.json"]
    assert read_guarantee_file("out/_guarantee.json") == read_guarantee_file("out/present.csv.guarantee.json")
    assert cli.main(["report", "out", "--output", "page.html"]) == 0
    page = Path("page.html").read_text()
    assert "present.csv" in page and "All results together: epsilon" in page
    assert [Path(path).name for path in results_in("out")] == ["present.csv"]
    assert [Path(path).name for path in results_in(".")] == ["present.csv"]


@pytest.mark.slow
def test_the_example_is_answered_as_by_single_commands(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of two columns, quantiles and a set, with renewal."""
    write_clicks(shop, 4000)
    assert run(EXAMPLE) == 0
    assert Path("out/pages.csv").read_text().startswith("window_start,window_end,country,page,people")
    whole = json.loads(Path("out/_guarantee.json").read_text())
    assert whole["guarantee"]["epsilon"] == 8 and whole["guarantee"]["delta"] == 1e-6
    assert "2 hours" in json.dumps(whole["guarantee"]) or "renew" in json.dumps(whole["guarantee"])
    assert read_guarantee_file("out/_guarantee.json").epsilon == 8
    letters = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert {letter["reason"].partition(" (for")[2] for letter in letters} == {"", " latency)"}
    assert len(letters) == 401
    same_as_single(monkeypatch, {"pages": "--item country,page", "latency": "--value ms", "present": ""})


@pytest.mark.slow
def test_one_entry_of_the_ledger_and_repetitions_are_free(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(QUICK, "--run_id", "july") == 0
    (entry,) = Ledger("noise.key.ledger.jsonl").contents().entries
    assert (entry.command, entry.epsilon) == ("run", 8.0)
    first = Path("out/present.csv").read_bytes()
    guarantee = json.loads(Path("out/_guarantee.json").read_text())
    assert guarantee["ledger"]["line"] == 1
    assert run(QUICK, "--run_id", "july") == 2, "results that are there are not replaced"
    capsys.readouterr()
    assert run(QUICK, "--run_id", "july", "--overwrite") == 0
    assert "a repetition" in capsys.readouterr().err
    assert Path("out/present.csv").read_bytes() == first


def test_a_run_has_an_account_unless_it_is_asked_to_go_without(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = QUICK.replace("account: {key: noise.key}\n", "")
    assert "account.ledger: must be given, or a key" in refused(without, capsys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("output: {path: out}", ""), "output.path: must be given: a folder for the rows of all questions"),
        (("path: out", "path: out, send: 'postgresql://u:p@h/d'"), "without a password"),
        (("path: out", "pth: out"), "line 8: output.pth: unknown key; did you mean `path`?"),
        (("value: ms", "value: mz"), "line 5: questions.slow.value: must name a field of clicks.csv: no `mz` there"),
        (("ms > 300", "ms >"), "line 5: questions.slow.where: character"),
        pytest.param(("key: noise.key", "key: clicks.csv"), "key", marks=pytest.mark.slow),
        pytest.param(("path: out", "path: clicks.csv"), "output must be in a folder", marks=pytest.mark.slow),
    ],
)
def test_mistakes_are_named_before_anything_is_spent(shop, capsys, change, message):
    assert QUICK.count(change[0])
    assert message in refused(QUICK.replace(*change), capsys)


@pytest.mark.slow
def test_a_run_that_fails_leaves_no_rows(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(runs, "move_file", fail)
    assert run(QUICK) == 1
    assert sorted(path.name for path in Path("out").iterdir()) == []


def test_what_only_the_pipeline_knows_is_named_with_its_question(shop, capsys):
    text = "".join(line for line in QUICK.splitlines(keepends=True) if "slow" not in line)
    text = text.replace(", end: 2026-01-01T04:00", "")
    told = refused(text, capsys)
    assert "monitor.yaml, line 5: questions.present: max_contributions must be given where the run has no end" in told


CHANGES = {
    "window: 1h": [("window: 60m", False), ("window: 30m", True)],
    "timeout: 30m}": [
        ("timeout: 30m, share: 2}", True),
        ("timeout: 30m}\n  more: {question: cardinality, timeout: 30m}", True),
    ],
    "start: 2026-01-01,": [
        ("start: 2026-01-01T00:00:00Z,", False),
        ("start: 2025-12-31T23:00:00Z,", True),
        ("start: 2026-01-01, renew_every: 2h,", True),
        ("start: 2026-01-01, allowed_lateness: 1m,", True),
    ],
    "epsilon: 8": [("epsilon: 8.0", False), ("epsilon: 9", True)],
    "  present:": [("  there:", True)],
    "where: ms > 300": [("where: ms > 301", True)],
    "path: out}": [
        ("path: out, dead_letter: bad.jsonl}", False),
        ("path: out, format: csv}", False),
        ("path: out}\nviews: {busy: {of: present, above: 9}}", False),
    ],
    "user: customer": [("user: country", True)],
}
"""What a text of a monitor is changed to, and whether that is another release."""


@pytest.mark.slow
def test_which_changes_of_a_monitor_make_another_release(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = QUICK.replace("noise.key}", "noise.key, run_id: clicks}")
    Path("monitor.yaml").write_text(monitor)
    assert cli.main(["run", "monitor.yaml"]) == 0
    for old, changes in CHANGES.items():
        for new, another in changes:
            assert monitor.count(old) == 1
            Path("monitor.yaml").write_text(monitor.replace(old, new))
            capsys.readouterr()
            assert cli.main(["run", "monitor.yaml", "--dry_run", "--overwrite"]) == 0
            told = capsys.readouterr().err
            assert ("a repetition" not in told) == another, (new, told)
