"""Faults of counts that real use found, through the command line: see the numbers in the names."""

import csv
import json
import random

import numpy as np
import pytest
from privstream.pipelines.cli import main

WEEK = ("--window", "1day", "--start", "2030-01-01", "--end", "2030-01-08")
KEY = bytes(range(100, 132)).hex()


@pytest.fixture
def run(tmp_path):
    """Return what runs a question on events (user, item, day, value), and gives rows and the guarantee."""
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)

    def run(events, *options, name="rows"):
        source, output = tmp_path / "events.jsonl", tmp_path / f"{name}.csv"
        with source.open("w") as file:
            for user, item, day, *value in events:
                time = f"2030-01-{day + 1:02d}T10:00:00Z"
                more = {"value": value[0]} if value else {}
                file.write(json.dumps({"user": user, "item": item, "time": time, **more}) + "\n")
        given = ["counts", "--input", str(source), "--output", str(output), "--key", str(key)]
        assert main([*given, "--ledger", str(tmp_path / "l.jsonl"), "--delta", "1e-6", "--overwrite", *options]) == 0
        with output.open() as file:
            rows = list(csv.DictReader(file))
        with (tmp_path / f"{name}.csv.guarantee.json").open() as file:
            return rows, json.load(file)

    return run


def crowd(people=3000, items=8, days=7, seed=1):
    draw = random.Random(seed)
    return [(f"u{n}", i, day) for n in range(people) for day in range(days) for i in draw.sample("abcdefgh"[:items], 2)]


def test_p1_views_are_the_same_release(run):
    """`--top`, `--at_least` and `--rising` choose rows of the same numbers, and of the same run."""
    events, common = crowd(), (*WEEK, "--epsilon", "1", "--max_contributions", "14")
    rows, promised = run(events, *common, name="all")
    every = {(row["window_start"], row["item"]): row for row in rows}
    for view in (["--top", "3"], ["--at_least", "755"], ["--rising"], ["--rising", "2", "--top", "1"]):
        some, other = run(events, *common, *view, name="some")
        assert len(some) < len(rows)
        assert other["guarantee"] == promised["guarantee"]
        for row in some:
            whole = every[row["window_start"], row["item"]]
            assert all(row[name] == whole[name] for name in row if name in whole)


def test_t5_one_number_with_its_own_interval(run, capsys):
    rows, _ = run(crowd(), *WEEK, "--epsilon", "1", "--max_contributions", "5")
    assert not {"full", "kept", "left_out", "error_bound", "smoothed", "count"} & rows[0].keys()
    for row in rows:
        assert float(row["lower"]) <= float(row["people"]) and row["upper"] == "", "limits drop two thirds"
    summed, _ = run(crowd(), *WEEK, "--epsilon", "1", "--over", "2d", name="summed")
    assert all(float(row["lower"]) <= float(row["people"]) <= float(row["upper"] or "inf") for row in summed)
    capsys.readouterr()


@pytest.mark.parametrize("top", [[], ["--top", "3"]])
def test_t8_where_every_item_falls_nothing_rose(run, top):
    events = [(f"u{n}", item, day) for day in range(7) for item in "abcd" for n in range(2000 - 200 * day)]
    rows, _ = run(events, *WEEK, "--epsilon", "1", "--max_contributions", "28", "--rising", *top)
    assert rows == []


def test_t12_a_mean_has_an_interval_or_is_empty(run):
    draw = random.Random(3)
    events = [(f"u{n}", item, day, draw.randint(0, 3)) for n in range(300) for day in range(7) for item in "ab"]
    rows, _ = run(events, *WEEK, "--epsilon", "1", "--max_contributions", "14", "--max_value", "5000", name="noisy")
    clear, _ = run(events, *WEEK, "--epsilon", "50", "--max_contributions", "14", "--max_value", "5", name="clear")
    assert any(row["mean"] for row in clear)
    for row in [*rows, *clear]:
        known = row["mean"] != ""
        assert (row["mean_margin"] != "") == known
        if known:
            assert float(row["value"]) >= 0 and 0 <= float(row["mean"]) <= 5000
    means = [float(row["mean"]) for row in clear if row["mean"]]
    assert np.mean(means) == pytest.approx(1.5, abs=0.3)


def test_e6_numbers_are_rounded_and_times_are_those_of_the_zone(run):
    draw = random.Random(4)
    events = [(f"u{n}", item, day, draw.randint(0, 70)) for n in range(300) for day in range(7) for item in "ab"]
    options = ("--epsilon", "1", "--max_contributions", "14", "--max_value", "60", "--time_zone", "America/New_York")
    rows, _ = run(events, *WEEK, *options)
    for row in rows:
        assert row["window_start"].endswith("T00:00:00-05:00") and row["window_end"].endswith("T00:00:00-05:00")
        numbers = [text for name, text in row.items() if not name.startswith("window") and name != "item"]
        assert all(len(text.strip("-").replace(".", "")) <= 6 for text in numbers), row


def test_e7_of_events_the_mean_is_the_average_of_sql(run):
    events = [(f"u{n % 50}", "ab"[n % 2], n % 7, n % 5) for n in range(7_000)]
    rows, _ = run(events, *WEEK, "--epsilon", "20", "--unit", "event", "--max_value", "5", name="events")
    for row in rows:
        values = [
            value
            for _, item, day, value in events
            if f"{item} 2030-01-{day + 1:02}" == f"{row['item']} {row['window_start'][:10]}"
        ]
        assert float(row["mean"]) == pytest.approx(np.mean(values), abs=4 * float(row["mean_margin"]))


def test_t13_more_budget_never_finds_fewer(run):
    draw = random.Random(5)
    weights = [1 / rank for rank in range(1, 301)]
    names = [f"item {rank}" for rank in range(300)]
    events = [
        (f"u{n}", item, day) for n in range(800) for day in range(7) for item in draw.choices(names, weights, k=4)
    ]
    found = []
    for epsilon in ("0.5", "1", "2", "4", "8"):
        rows, _ = run(events, *WEEK, "--epsilon", epsilon, "--max_contributions", "28", name=f"at{epsilon}")
        found.append(len({row["item"] for row in rows}))
    assert found == sorted(found) and found[1] > 3 and found[-1] > 40
