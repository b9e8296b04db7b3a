"""What a run says of its limits is true: T1, T2, T11. Through the command line, as a user sees it."""

import json
import math
import re
import shlex
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from privstream.mechanisms.keyed_counts.dropped import DroppedShare
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.pipelines import cli
from questions import overridden

DAY, START = 86_400, int(datetime(2030, 1, 1, tzinfo=UTC).timestamp())


def written(folder, users, items, windows):
    """Write events, one for each person, item and day."""
    rows = np.unique(np.stack([users, items, windows], axis=1), axis=0)
    lines = [f"u{user},i{item},{START + window * DAY + 60}" for user, item, window in rows.tolist()]
    (folder / "events.csv").write_text("\n".join(["user,item,time", *lines]))
    (folder / "key").write_text("a key of this test alone, which is long enough\n")
    (folder / "key").chmod(0o600)
    return np.bincount(rows[:, 0])


def run(folder, windows, limit, options=""):
    """Return what a run says of its limits, and its summary."""
    span = f"--window 1day --start 2030-01-01 --end {date(2030, 1, 1) + timedelta(windows)}"
    files = f"--input {folder}/events.csv --time_unit s --key {folder}/key --output {folder}/out.jsonl"
    line = f"counts {files} {span} --epsilon 1 --delta 1e-6 --max_contributions {limit} --ledger none {options}"
    assert cli.main(overridden(shlex.split(line))) == 0
    return json.loads((folder / "out.jsonl.guarantee.json").read_text())["limits"]


def people_of(kind, number, mean, days, rng):
    """Return person, item and day of each event: contributions in one window, in few, or in all."""
    has = np.minimum(rng.geometric(1 / mean, number), 6 * mean)
    users = np.repeat(np.arange(number), has)
    items = np.concatenate([rng.permutation(400)[:few] for few in has])
    if kind == "one":
        days_of = rng.integers(0, days, number)[users]
    elif kind == "few":
        days_of = rng.integers(0, days, (number, 3))[users, rng.integers(0, 3, len(users))]
    else:
        days_of = rng.integers(0, days, len(users))
    return users, items, days_of


def true_share(has, limit):
    return 1 - np.minimum(has, limit).sum() / has.sum()


def holds(found, truth):
    """Tell whether what is said is true, but for four hundredths: one interval in 20 may miss."""
    dropped = found["dropped"]
    if dropped is None:
        return True
    return dropped["lower"] <= truth + 0.04 and (dropped["upper"] is None or truth <= dropped["upper"] + 0.04)


@pytest.mark.parametrize("kind", ["one", "few", "all"])
@pytest.mark.parametrize(("limit", "share"), [(120, 0.0), (38, 0.15), (22, 0.33), (2, 0.9)])
def test_t1_what_is_said_of_limits_holds_wherever_contributions_lie(kind, limit, share, tmp_path, capsys):
    has = written(tmp_path, *people_of(kind, 3_000, 20, 30, np.random.default_rng(limit)))
    truth = true_share(has, limit)
    assert truth == pytest.approx(share, abs=0.05)
    found = run(tmp_path, 30, limit)
    said = capsys.readouterr().err
    assert found["max_contributions"] == limit and found["max_per_window"] is None
    assert holds(found, truth)
    (line,) = re.findall(rf"limits +{limit} contributions per person, (.*)", said)
    if share > 0.3:
        assert found["dropped"]["lower"] > share - 0.2
        assert f"{math.floor(100 * found['dropped']['lower'])}%" in line


def test_t1_people_who_each_come_on_one_day_of_37(tmp_path):
    rng = np.random.default_rng(1)
    users = np.repeat(np.arange(3_000), rng.integers(3, 91, 3_000))
    items = np.concatenate([rng.permutation(200)[:few] for few in np.bincount(users)])
    has = written(tmp_path, users, items, rng.integers(0, 37, 3_000)[users])
    found = run(tmp_path, 37, 8)
    assert true_share(has, 8) > 0.8
    assert found["dropped"]["upper"] is None and 0.5 < found["dropped"]["lower"] < true_share(has, 8)


def test_t11_where_hardly_anything_is_dropped_the_interval_holds_it(tmp_path):
    for seed in range(3):
        has = written(tmp_path, *people_of("all", 2_469, 30, 30, np.random.default_rng(seed)))
        limit = int(np.quantile(has, 0.99))
        assert 0 < true_share(has, limit) < 0.02
        assert holds(run(tmp_path, 30, limit, "--overwrite"), true_share(has, limit))


def test_a_dry_run_does_not_show_the_share(tmp_path, capsys):
    written(tmp_path, *people_of("all", 2_000, 20, 30, np.random.default_rng(4)))
    files = f"--input {tmp_path}/events.csv --time_unit s --key {tmp_path}/key --output {tmp_path}/o.jsonl"
    line = f"counts {files} --window 1day --start 2030-01-01 --end 2030-01-31 --epsilon 1 --delta 1e-6 --ledger none"
    assert cli.main(shlex.split(f"{line} --max_contributions 5 --dry_run")) == 0
    shown = capsys.readouterr()
    assert "dropped" not in shown.err + shown.out and not (tmp_path / "o.jsonl").exists()


def test_t2_suggest_says_only_what_was_measured(tmp_path, capsys):
    """Baskets with a long tail: the ten largest items hold 5% of all."""
    rng = np.random.default_rng(5)
    popular = 1 / (np.arange(2_000) + 60.0)
    has = np.minimum(np.exp(rng.normal(3, 1, 2_000)).astype(int) + 1, 600)
    users = np.repeat(np.arange(2_000), has)
    items = rng.choice(2_000, len(users), p=popular / popular.sum())
    has = written(tmp_path, users, items, rng.integers(0, 30, len(users)))
    files = f"--input {tmp_path}/events.csv --time_unit s --key {tmp_path}/key --output {tmp_path}/limits.jsonl"
    line = f"suggest {files} --window 1day --start 2030-01-01 --end 2030-01-31 --epsilon 0.2 --ledger none"
    assert cli.main(shlex.split(line)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "largest items" not in said
    (limit,) = re.findall(r"--max-contributions (\d+)", said)
    assert true_share(has, int(limit)) < 0.2
    rows = [json.loads(line) for line in (tmp_path / "limits.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["suggested"]]
    assert row["suggested"] == f"--max-contributions {limit}"
    assert row["kept_lower"] <= 1 - true_share(has, int(limit)) <= row["kept_upper"]
    # items of these sizes are found as said, by the run that is asked about
    run(tmp_path, 30, limit)
    found = {json.loads(line)["item"] for line in (tmp_path / "out.jsonl").read_text().splitlines()}
    people_in = np.bincount(items, minlength=2_000) / 30
    sure = [f"i{item}" for item in np.flatnonzero(people_in > 1.5 * row["found_in_all"])]
    assert sum(item in found for item in sure) >= 0.8 * len(sure)


def test_two_limits_drop_what_either_drops(tmp_path):
    users, items, days = people_of("few", 3_000, 20, 30, np.random.default_rng(7))
    has = written(tmp_path, users, items, days)
    found = run(tmp_path, 30, 10, "--max_per_window 4")
    rows = np.unique(np.stack([users, items, days], axis=1), axis=0)
    each = np.bincount(rows[:, 0] * 30 + rows[:, 2], minlength=90_000).reshape(3_000, 30)
    truth = 1 - np.minimum(np.minimum(each, 4).sum(axis=1), 10).sum() / has.sum()
    assert found["max_per_window"] == 4 and truth > 0.3
    assert holds(found, truth) and found["dropped"]["lower"] > truth - 0.2


def test_noise_of_one_share_at_two_scales_is_independent():
    """Else two released numbers of one total would show it."""
    total = np.array([7000, 2000, 3, 4])
    noise = SeededNoise(1)
    errors = [DroppedShare(5, shift).release(1, total, noise) - total for shift in (0.1, 0.2)]
    assert not np.all(np.abs(errors[0] - 2 * errors[1]) <= 2)


def test_who_has_all_items_of_a_list_at_once_counts_for_all_of_them_since_the_start(tmp_path):
    users = np.repeat(np.arange(500), 8)
    written(tmp_path, users, np.tile(np.arange(8), 500), np.zeros(4000, int))
    (tmp_path / "list").write_text("".join(f"i{number}\n" for number in range(8)))
    limits = run(tmp_path, 4, 8, f"--over start --domain {tmp_path}/list --epsilon 100")
    assert limits["dropped"] == {"share": 0.0, "lower": 0.0, "upper": 0.0}
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 32 and all(abs(row["people"] - 500) <= 20 for row in rows)
