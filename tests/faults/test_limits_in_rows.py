"""What limits drop is in the numbers: as they are, corrected, or lower bounds, through the command line."""

import csv
import json
import random
from collections import Counter

import pytest
from privstream.pipelines.cli import main

RUN = ("--window", "1month", "--start", "2030-01-01", "--end", "2030-05-01", "--time_zone", "UTC", "--delta", "1e-6")


def ask(folder, word, items, *options, people=2000):
    """Ask about people who have a number of items in each of four months; return rows, the share, and the truth."""
    draw, true, lines = random.Random(4), Counter(), ["user,item,time"]
    for person in range(people):
        for month in range(1, 5):
            for item in draw.sample(range(60), items):
                true[f"2030-{month:02}", str(item)] += 1
                lines.append(f"u{person},{item},2030-{month:02}-10T00:00:00Z")
    (folder / "in.csv").write_text("\n".join(lines))
    (folder / "key").write_text("0123456789abcdef" * 2)
    (folder / "key").chmod(0o600)
    files = ("--input", f"{folder}/in.csv", "--output", f"{folder}/out.csv", "--key", f"{folder}/key")
    assert main([word, *files, *RUN, "--ledger", "none", *options]) == 0
    with (folder / "out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    limits = json.loads((folder / "out.csv.guarantee.json").read_text())["limits"]
    return rows, limits["dropped"], [true[row["window_start"][:7], row["item"]] for row in rows]


@pytest.mark.parametrize(("limit", "regime"), [("40", "as it is"), ("34", "corrected"), ("16", "lower bound")])
def test_t5_numbers_are_of_all_people_or_lower_bounds(tmp_path, limit, regime):
    rows, dropped, true = ask(tmp_path, "counts", 10, "--epsilon", "4", "--max_contributions", limit)
    really = 1 - int(limit) / 40
    if dropped is not None:
        assert dropped["lower"] <= really + 0.01  # of 95%, in one draw
        assert dropped["upper"] is None or really <= dropped["upper"] + 0.01
    bound = [row["upper"] == "" for row in rows]
    assert all(bound) if regime == "lower bound" else not any(bound)
    held = [
        float(row["lower"]) <= number <= float(row["upper"] or "inf") for row, number in zip(rows, true, strict=True)
    ]
    assert sum(held) >= 0.85 * len(rows) > 100  # one draw: errors of the share are those of all rows
    ratio = sum(float(row["people"]) for row in rows) / sum(true)
    assert ratio == pytest.approx(1 if regime != "lower bound" else 0.4, abs=0.08)


def test_t6_ranks_of_people_with_many_items_are_lower_bounds(tmp_path, capsys):
    """With defaults, fifty items a month."""
    rows, _, true = ask(tmp_path, "top-k", 50, "--epsilon", "1")
    assert rows and all(row["upper"] == "" for row in rows)
    assert all(float(row["lower"]) <= number for row, number in zip(rows, true, strict=True))
    assert all(float(row["people"]) < number for row, number in zip(rows, true, strict=True))
    capsys.readouterr()
    files = ("--input", f"{tmp_path}/in.csv", "--output", "-", "--key", f"{tmp_path}/key")
    assert main(["top-k", *files, *RUN, "--ledger", "none", "--epsilon", "1"]) == 0
    assert "or more" in capsys.readouterr().out
