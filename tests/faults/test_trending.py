"""What a week of real use found of heavy-hitters, top-k and alerts: right values, through the command line."""

import json
from collections import defaultdict

import numpy as np
import pytest
from privstream.pipelines import cli

DAY = 86_400
START = "2030-01-01T00:00:00Z"


def moment(window: int, second: int = 3600) -> int:
    return 1_893_456_000 + window * DAY + second


def ran(folder, line: str, events: list[tuple[str, str, int]] | None = None, *, key: int = 0) -> list[dict]:
    """Return the rows of a command on events (user, item, seconds since 1970)."""
    if events is not None:
        lines = (json.dumps({"user": user, "item": item, "time": int(time)}) for user, item, time in events)
        (folder / "events.jsonl").write_text("\n".join(lines))
    (folder / "key").write_bytes(np.random.default_rng(key).bytes(32))
    (folder / "key").chmod(0o600)
    output = folder / f"rows{len(list(folder.iterdir()))}.jsonl"
    command = f"{line} --input {folder}/events.jsonl --output {output} --key {folder}/key --ledger none"
    assert cli.main([*command.split(), "--start", START, "--time_unit", "s"]) == 0
    return [json.loads(row) for row in output.read_text().splitlines()]


def truth(events: list[tuple[str, str, int]]) -> dict[tuple[str, int], int]:
    people = defaultdict(set)
    for user, item, time in events:
        people[item, (time - moment(0, 0)) // DAY].add(user)
    return {key: len(users) for key, users in people.items()}


def window_of(row: dict) -> int:
    return int(
        (np.datetime64(row["window_start"].removesuffix("Z")) - np.datetime64("2030-01-01")) / np.timedelta64(1, "D")
    )


def baskets(people: int, seed: int) -> list[tuple[str, str, int]]:
    """Each person comes once, with many items: the leader of each window has most people."""
    chance = np.random.default_rng(seed)
    shares = np.linspace(0.9, 0.1, 17)
    return [
        (f"user {person}", f"item {item:02}", moment(window, 60 * item + 1))
        for person in range(people)
        for window in [int(chance.integers(6))]
        for item in np.flatnonzero(chance.random(17) < shares)
    ]


@pytest.mark.parametrize("word", ["top-k --top 3", "heavy-hitters"])
def test_t4_one_person_in_one_window_has_many_items(tmp_path, word):
    """The leader leads, and intervals hold, whatever comes last among the items of a person."""
    events = baskets(3000, 1)
    end = "--window 1day --end 2030-01-07T00:00:00Z --epsilon 2 --delta 1e-6 --max_contributions 17"
    rows, true = ran(tmp_path, f"{word} {end}", events), truth(events)
    number = "people"
    assert rows
    held = [row["lower"] <= true.get((row["item"], window_of(row)), 0) <= row["upper"] for row in rows]
    assert np.mean(held) >= 0.85
    leaders = [max((row for row in rows if window_of(row) == at), key=lambda row: row[number]) for at in range(6)]
    assert sum(true[row["item"], at] >= 0.95 * true["item 00", at] for at, row in enumerate(leaders)) >= 5


@pytest.mark.parametrize("key", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_t9_of_rows_surely_above_the_threshold_hardly_any_is_false(tmp_path, key):
    """Items come for a day or two, others all the time, and most items have hardly anybody in most windows."""
    chance = np.random.default_rng(key)
    events, windows = [], 26
    for item in range(60):
        level = float(chance.choice([40, 80, 160]))
        first, days = int(chance.integers(windows)), windows if item % 5 == 0 else int(chance.integers(1, 3))
        for window in range(windows):
            crowd = level if first <= window < first + days or days == windows else float(chance.integers(3))
            events += [
                (f"user {chance.integers(60_000)}", f"item {item}", moment(window, int(second)))
                for second in chance.integers(DAY, size=chance.poisson(crowd))
            ]
    end = "--window 1day --end 2030-01-27T00:00:00Z --epsilon 1 --delta 1e-6 --max_contributions 4"
    rows, true = ran(tmp_path, f"heavy-hitters {end}", events, key=key), truth(events)
    false = [row for row in rows if true.get((row["item"], window_of(row)), 0) <= 5]
    assert len(rows) > 150
    assert len(false) <= 0.01 * len(rows) + 1


def test_t15_alerts_are_found_and_hardly_any_is_false(tmp_path):
    """Four rules in 300 hours; people come seldom, and a rule is met for some hours, thrice its usual number."""
    chance = np.random.default_rng(4)
    events, met = [], set()
    for rule in range(4):
        begins = sorted(chance.choice(range(5, 290, 12), size=6, replace=False).tolist())
        alerts = {at for begin in begins for at in range(begin, begin + int(chance.integers(2, 6)))}
        met |= {(f"rule {rule}", at) for at in alerts}
        for hour in range(300):
            number = 300 if hour in alerts else 80
            events += [
                (f"user {chance.integers(40_000)}", f"item {rule}", moment(0, hour * 3600 + int(second)))
                for second in chance.integers(3600, size=number)
            ]
    rules = [{"name": f"rule {rule}", "at_least": 200, "items": [f"item {rule}"]} for rule in range(4)]
    (tmp_path / "rules").write_text("\n".join(map(json.dumps, rules)))
    end = "--window 1h --end 2030-01-13T12:00:00Z --epsilon 1 --delta 1e-6 --max_contributions 20"
    rows = ran(tmp_path, f"alerts --rules {tmp_path}/rules {end}", events)
    start = np.datetime64("2030-01-01")
    found = {
        (row["rule"], int((np.datetime64(row["window_start"].removesuffix("Z")) - start) / np.timedelta64(1, "h")))
        for row in rows
    }
    assert len(found & met) >= 0.95 * len(met)
    assert len(found - met) <= 2


def test_e2_a_rule_ends_where_it_is_clear_and_until_is_unknown(tmp_path):
    numbers = [100, 520, 450, 450, 350, 450]
    events = [(f"user {window} {p}", "a", moment(window)) for window, n in enumerate(numbers) for p in range(n)]
    (tmp_path / "rules").write_text('{"name": "a", "at_least": 500, "clear_below": 400, "items": ["a"]}')
    end = "--window 1day --end 2030-01-07T00:00:00Z --epsilon 50 --delta 1e-6 --max_contributions 1"
    rows = ran(tmp_path, f"alerts --rules {tmp_path}/rules {end}", events)
    assert [window_of(row) for row in rows] == [1, 2, 3]
    assert {row["since"][:10] for row in rows} == {"2030-01-02"}
    (tmp_path / "rules").write_text('{"name": "a", "at_least": 500, "until": 400, "items": ["a"]}')
    assert (
        cli.main(f"alerts --rules {tmp_path}/rules --input {tmp_path}/events.jsonl --start {START} {end}".split()) == 2
    )
