"""heavy-hitters, top-k and alerts on the command line: rows of all methods, plans, pictures, watched folders."""

import json
from pathlib import Path

import pytest
from privstream.pipelines import cli

ON_A_CLOCK = "--window 3600 --start 2024-01-01 --end 2024-01-01T04:00:00Z --epsilon 8"
QUESTIONS = {
    "heavy-hitters": "--delta 1e-6 --max_contributions 8",
    "heavy-hitters by clock": "--delta 1e-6 --method clock",
    "heavy-hitters by status": "--delta 1e-6 --method status",
    "top-k": "--delta 1e-6 --max_contributions 8 --top 2",
    "top-k by gaps": "--domain domain --top 2 --method gaps --max_per_window 3",
    "alerts": "--rules rules",
    "alerts by sparse_vector": "--rules rules --method sparse_vector",
    "alerts by status": "--rules rules --delta 1e-6 --method status",
}
CROWDS = {"a": (300, 300, 280, 260), "b": (200, 10, 200, 200), "c": (150, 100, 140, 150), "d": (1, 0, 0, 2)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    events = [
        {"user": f"u{person}", "item": item, "time": f"2024-01-01T0{hour}:30:00Z"}
        for item, numbers in CROWDS.items()
        for hour, number in enumerate(numbers)
        for person in range(number)
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    (tmp_path / "domain").write_text("\n".join(CROWDS))
    (tmp_path / "rules").write_text('{"name": "a or b", "at_least": 250, "items": ["a", "b"]}')
    (tmp_path / "key").write_text("a key of this test alone")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(name: str, output: str = "rows.jsonl") -> list[dict]:
    word = name.split(maxsplit=1)[0]
    line = f"{word} --input events.jsonl --output {output} --key key --ledger none {ON_A_CLOCK}"
    assert cli.main(f"{line} {QUESTIONS[name]}".split()) == 0
    return [json.loads(row) for row in Path(output).read_text().splitlines()]


@pytest.mark.parametrize("name", QUESTIONS)
def test_rows_are_right_and_have_few_columns(name, folder):
    rows = asked(name)
    assert rows and all(len(row) <= 12 for row in rows)
    for row in rows:
        hour = int(row["window_start"][11:13])
        number = row["people"] if "people" in row else row["estimate"]
        if number is None:
            assert row["status"] == "continues" and row["lower"] is None
            continue
        true = CROWDS[row["item"]][hour] if "item" in row else max(CROWDS["a"][hour], CROWDS["b"][hour])
        charged = "clock" in name or "status" in name  # who is charged counts, with one item
        assert (0 if charged else true - 80) <= number <= true + 60
        assert (row["lower"] or 0) <= number <= (row["upper"] or 10**9)
    if name.startswith("top-k"):
        first = [row for row in rows if row["rank"] == 1]
        assert [row["item"] for row in first] == ["a"] * 4 and all(row["gap"] > 20 for row in first)
    if name.startswith("alerts"):
        assert all(row["rule"] == "a or b" and row["threshold"] == 250 for row in rows)
        assert all((row["epsilon_left"] is not None) == name.endswith("sparse_vector") for row in rows)
    again = asked(name, "again.jsonl") if name == "top-k by gaps" else rows
    assert again == rows


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("heavy-hitters --delta 1e-6 --max_contributions 20", {"detection_threshold", "stddev"}),
        ("heavy-hitters --method clock --delta 1e-6 --max_hits 3", {"threshold"}),
        ("top-k --domain list --max_contributions 20", {"stddev"}),
        ("top-k --domain list --method gaps --max_per_window 2", {"selection_error", "stddev"}),
        ("alerts --rules rules", {"stddev"}),
        (
            "alerts --rules rules --method sparse_vector --delta 1e-6 --min_alerts 5",
            {"start_margin", "min_alerts", "max_alerts"},
        ),
    ],
)
def test_plans_say_what_runs_promise(line, numbers, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("list").write_text("".join(f"{number}\n" for number in range(50)))
    Path("rules").write_text("".join(f'{{"name": "{number}", "at_least": 9}}\n' for number in range(3)))
    assert cli.main(f"plan {line} --epsilon 1 --window 1 --start 0 --end 24 --json".split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(f"'{number}'" in str(found) for number in numbers)


@pytest.mark.slow
def test_a_watched_folder_has_ranks_of_each_window(folder):
    events = (folder / "events.jsonl").read_text()
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    (folder / "in" / "events.jsonl").write_text(events)
    for name in ("_UNTIL_20240101T040001Z", "_END"):
        (folder / "in" / name).touch()
    line = f"top-k --input in --watch 1 --output out --key key --ledger none {ON_A_CLOCK} --run_id one"
    assert cli.main(f"{line} --watermark marks --input_format jsonl {QUESTIONS['top-k']}".split()) == 0
    rows = [
        json.loads(row) for file in sorted((folder / "out").glob("*.jsonl")) for row in file.read_text().splitlines()
    ]
    assert {row["rank"] for row in rows} == {1, 2}


@pytest.mark.parametrize(
    "rule",
    [
        '{"name": "r"}',
        '{"name": "r", "at_least": 5, "at_most": 5}',
        '{"name": "r", "at_least": 5, "windows": 3}',
        '{"name": "r", "at_least": 5, "clear_below": 6}',
        '{"name": "r", "at_least": 5, "clear_above": 6}',
        '{"name": "r", "at_least": 2.5}',
    ],
)
def test_rules_that_mean_nothing_are_refused(rule, folder):
    (folder / "rules").write_text(rule)
    line = f"alerts --input events.jsonl --output rows.jsonl --key key --ledger none {ON_A_CLOCK}"
    assert cli.main(f"{line} --rules rules".split()) == 2
    assert not (folder / "rows.jsonl").exists()
