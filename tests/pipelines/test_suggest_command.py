"""`privstream suggest`: from a file to options that the next command takes."""

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from privstream.pipelines import cli
from privstream.pipelines.sinks.row_files import read_row_file
from privstream.transforms.row_types import LimitShare

WINDOWS = "--window 1d --start 2024-01-01 --end 2024-01-08"
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with purchases of 600 people, most of whom buy 3 items, and one of whom 20,000; and a key."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(1)
    users = [f"u{user}" for user in range(600) for _ in range(1 + int(rng.integers(0, 5)))] + ["much"] * 20_000
    with open(folder / "events.jsonl", "w") as file:
        for user in users:
            time = BEGIN + timedelta(minutes=int(rng.integers(0, 7 * 1440)))
            event = {"user": user, "item": f"i{rng.integers(0, 9)}", "time": time.isoformat(), "value": 7}
            file.write(json.dumps(event) + "\n")
    (folder / "key").write_text("a key of this test alone\n")
    (folder / "key").chmod(0o600)
    return folder


def suggest(shop: Path, options: str, windows: str = WINDOWS) -> int:
    line = f"suggest --input {shop}/events.jsonl --key {shop}/key {windows} {options}"
    return cli.main(shlex.split(line))


@pytest.mark.slow
def test_what_is_printed_is_taken_by_the_command(shop, tmp_path, capsys):
    output = tmp_path / "limits.jsonl"
    assert suggest(shop, f"--epsilon 0.8 --output {output} --ledger none") == 0
    shown = capsys.readouterr()
    (option,) = re.findall(r"^--max-contributions \d+$", shown.out, re.M)
    assert 2 <= int(option.split()[1]) <= 8
    rows = read_row_file(str(output), LimitShare)
    assert [row.suggested for row in rows if row.suggested] == [option]
    promise = json.loads((tmp_path / "limits.jsonl.guarantee.json").read_text())
    assert promise["guarantee"]["epsilon"] == 0.8
    assert promise["guarantee"]["delta"] == 0
    assert promise["guarantee"]["unit"] == "one person over the whole run"
    taken = (
        f"counts --input {shop}/events.jsonl --key {shop}/key {WINDOWS} --epsilon 1 --delta 1e-6 --ledger none {option}"
    )
    assert cli.main([*shlex.split(taken), "--output", str(tmp_path / "counts.jsonl")]) == 0


def test_a_dry_run_publishes_and_spends_nothing(shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger, output = tmp_path / "ledger", tmp_path / "limits.jsonl"
    assert suggest(shop, f"--dry_run --ledger {ledger} --output {output}") == 0
    shown = capsys.readouterr()
    assert "dry run: nothing is published" in shown.err
    assert shown.out == ""
    assert not ledger.exists()
    assert not output.exists()


def test_few_people_are_a_line_and_no_option(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert suggest(shop, "--epsilon 0.001 --ledger none") == 0
    shown = capsys.readouterr().out
    assert "--max_contributions" not in shown
    assert "Raise --epsilon" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set data.watch=5", "--input must have an end: suggest is about one data set"),
        ("--nonsense 1", "unknown option --nonsense"),
        ("--delta 0.5", "--delta must be <= 0.1"),
    ],
)
def test_mistakes_are_named_before_anything_is_spent(options, message, shop, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert suggest(shop, f"{options} --ledger {tmp_path}/ledger") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "ledger").exists()
