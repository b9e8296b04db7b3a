"""`privstream demo`."""

import json
import os
import re
import shlex
import stat
from pathlib import Path

import pytest
from privstream.pipelines import cli, demo
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.simulate.simulation import ItemHolders
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.rows import KeyCount

FILES = {
    "commands.sh",
    "events.parquet",
    "counts.jsonl",
    "counts.jsonl.guarantee.json",
    "counts.png",
    "noise.key",
    "noise.key.ledger.jsonl",
    "report.html",
    "truth.jsonl",
}


def run(*options: str) -> int:
    return cli.main(["demo", "--users", "9000", "--windows", "4", *options])


def test_the_demo_shows_what_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run() == 0
    shown = capsys.readouterr()
    folder = tmp_path / "demo-output"
    assert {path.name for path in folder.iterdir()} == FILES
    assert "(epsilon = 1, delta = 1e-06)-differential privacy for one person over the whole run" in shown.err
    rows = read_row_file(str(folder / "counts.jsonl"), KeyCount)
    items = {row.item for row in rows}
    assert len(items) >= 3 and all(len([row for row in rows if row.item == item]) == 4 for item in items)
    cells = " ".join(shown.out.replace("│", " ").split())
    assert "the largest items, in the hour of most people" in cells
    peak = max(rows, key=lambda row: row.smoothed)
    between = f"{peak.smoothed_lower:,.0f} and {peak.smoothed_upper:,.0f}"
    assert f"{peak.item} 01-01 0{peak.window_start.to_utc_datetime().hour}:00 {peak.smoothed:,.0f} {between}" in cells
    risen = max((row for row in rows if row.rise is not None), key=lambda row: row.rise)
    (first,) = [row for row in rows if row.item == risen.item and row.window_end == risen.window_start]
    assert risen.rise == pytest.approx(risen.smoothed - first.smoothed)
    change = f"{risen.rise:+,.0f} {risen.rise_lower:+,.0f} to {risen.rise_upper:+,.0f} 99.9%"
    assert re.search(rf"what rose most within an hour.*{risen.item} 01-01 \d\d:00 {re.escape(change)} ", cells)
    threshold = json.loads((folder / "counts.jsonl.guarantee.json").read_text())["accuracy"]["detection_threshold"]
    assert f"items that at least {threshold:,} people had in a window" in " ".join(shown.out.split())
    assert "Report: demo-output/report.html" in shown.out
    page = (folder / "report.html").read_text()
    rose = "surely rose in the window until" not in page  # what did not has no picture of its own
    assert page.count("<figure ") == 1 + rose and "none was missed" in page and "Dashed lines are the truth" in page
    assert "and none was missed" in " ".join(shown.out.split())
    assert "Found, but not in the truth: 0." in " ".join(shown.out.split())
    truth = {
        (row.item, row.window_start): row.holders for row in read_row_file(str(folder / "truth.jsonl"), ItemHolders)
    }
    known = [(row, truth[row.item, row.window_start]) for row in rows if (row.item, row.window_start) in truth]
    held = sum(row.smoothed_lower <= true <= row.smoothed_upper for row, true in known)
    assert f"Of {len(known)} published counts with a known truth, {held} have it" in cells and known
    assert "Picture: demo-output/counts.png" in shown.out
    assert "serve demo-output --ledger demo-output/noise.key.ledger.jsonl" in shown.out
    assert (folder / "counts.png").read_bytes().startswith(b"\x89PNG")
    assert stat.S_IMODE((folder / "noise.key").stat().st_mode) == 0o600


@pytest.mark.slow
def test_the_commands_that_are_shown_give_the_same_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--output", "a folder", "--seed", "2") == 0
    shown = [line.removeprefix("$ ") for line in capsys.readouterr().out.splitlines() if line.startswith("$ ")]
    written = (tmp_path / "a folder" / "commands.sh").read_text().splitlines()
    assert written[0].startswith("#")
    assert written[1:] == shown
    assert len(shown) == 4
    names = FILES - {"noise.key.ledger.jsonl", "report.html"}  # both have the time
    kept = {name: (tmp_path / "a folder" / name).read_bytes() for name in names}
    for command in shown:
        program, *arguments = shlex.split(command)
        assert Path(program).name == "privstream"
        assert cli.main(arguments) == 0
    assert {name: (tmp_path / "a folder" / name).read_bytes() for name in names} == kept
    first, again = Ledger(str(tmp_path / "a folder" / "noise.key.ledger.jsonl")).read()
    assert first.release == again.release, "a repetition"


def test_commands_can_be_typed_where_the_shell_does_not_find_privstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (program, word) = shlex.split(demo._typed(["plot"]))
    assert word == "plot"
    assert os.access(program, os.X_OK) and not os.path.isabs(program)
    (tmp_path / "privstream").touch(mode=0o755)
    assert demo._typed(["plot"]) == "privstream plot"


def test_another_demo_takes_another_key(tmp_path: Path) -> None:
    keys = set()
    for _ in range(2):
        files = demo._Files(str(tmp_path / "demo"))
        files.prepare([["plot"]])
        keys.add((tmp_path / "demo" / "noise.key").read_bytes())
    assert len(keys) == 2


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("events.parquet", "commands.sh"):
        (tmp_path / name).write_bytes(b"mine")
        assert run("--output", str(tmp_path)) == 2
        assert "--output must be a new folder, or one that a demo has made" in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--users", "0"], "users must be >= 1, got 0"),
        (["--windows", "0"], "windows must be >= 1, got 0"),
        (["--seed", "-1"], "seed must be >= 0, got -1"),
        (["--output", "file/folder"], "--output must be a folder that can be written"),
    ],
)
def test_what_cannot_work_is_refused(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert run(*options) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
