"""Configurations of counts per key, random events, and the slow way to count: dictionaries, no shards, no batches."""

import functools
import random
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedRows, KeyedStep
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain
from privstream.transforms.batches import CountBatch, from_stream
from privstream.transforms.counts.transform import KeyedCounts, rows_of
from privstream.transforms.row_types import KeyCount
from privstream.transforms.timing.step_fn import STEP
from slow_reference import hashed, hashed_all, lot
from workloads import KEY, SECOND, START

WINDOWS = 8
ITEMS = ("a", "b", "c", "ä\u2028\U0001f600", "e" * 300, "seldom")
LISTED = Domain([*ITEMS[:5], "nobody's"])
BESIDE = Domain(["b", "nobody's", "seldom"])
COMMON = {
    "epsilon": 20.0,
    "delta": 1e-2,
    "window": 10,
    "max_contributions": 4,
    "start": START,
    "end": START + 10 * WINDOWS,
    "shards": 3,
}
CONFIGURATIONS = {
    "found": {"epsilon": 4.0},
    "found, people": {"min_people": 3},
    "found, rising": {"epsilon": 60.0, "rising": 2},
    "found, more": {"max_contributions": 6, "epsilon": 6.0, "min_people": 2},
    "found, window limit": {"max_contributions": 6, "max_per_window": 2, "epsilon": 8.0},
    "found, public items": {"public_items": BESIDE, "epsilon": 3.0},
    "found, public items, several windows": {"public_items": BESIDE, "over": 30, "epsilon": 3.0},
    "found, several windows": {"over": 30, "epsilon": 4.0},
    "found, random": {"epsilon": 4.0},
    "found, random, window limit": {"max_contributions": 12, "max_per_window": 4, "epsilon": 8.0},
    "start, random": {"over": "start", "max_contributions": 3},
    "window, public, random": {"domain": LISTED},
    "window, public": {"domain": LISTED},
    "window, public, pure": {"domain": LISTED, "delta": 0.0},
    "trailing, public": {"over": 50, "domain": LISTED, "epsilon": 2.0},
    "start": {"over": "start", "epsilon": 4.0},
    "start, people": {"over": "start", "min_people": 5},
    "start, few": {"over": "start", "max_contributions": 2, "epsilon": 4.0},
    "start, public": {"over": "start", "domain": LISTED, "epsilon": 4.0},
    "start, public, pure": {"over": "start", "domain": LISTED, "delta": 0.0},
}
ONE_OF_EACH_CHAIN = (
    "window, public",
    "window, public, random",
    "start, public",
    "start, random",
    "found, more",
    "found, window limit",
    "found, random, window limit",
    "found, public items, several windows",
)
"""Of configurations with the same stages some, which have much of what these can do."""
Contribution = tuple[int, str, str]  # step, item, user


def transform(name: str, **changes) -> KeyedCounts:
    """The transform of a configuration; with random contributions as a command over files has it."""
    made = KeyedCounts(**{**COMMON, "noise": KeyedNoise(KEY), **CONFIGURATIONS[name], **changes})
    if "random" in name:
        made = made.over_files()
    return made


def random_events(name: str, chance: random.Random, n: int = 700) -> list[tuple[str, str, int]]:
    """Events of 150 people, some of them very busy, some events twice, some outside of the run; window 2 is empty."""
    events = []
    for _ in range(n):
        time = START * SECOND + chance.randrange(-10 * SECOND, 10 * (WINDOWS + 1) * SECOND)
        if 20 <= time // SECOND - START < 30:
            continue
        item = chance.choices([*ITEMS, "unlisted"], weights=[9, 6, 3, 3, 2, 0.1, 1])[0]
        user = f"user {chance.randrange(150) if chance.random() < 0.9 else chance.randrange(4)}"
        events.append((user, item, time))
    return events + chance.choices(events, k=n // 10)


def contributions(made: KeyedCounts, events) -> list[Contribution]:
    """Return what counts of the events, in order of steps."""
    steps, limit = made.steps, made.mechanism.contributions
    code, at_once = coder(made), made.mechanism.contributions_per_window
    found = defaultdict(lambda: defaultdict(set))
    for user, item, time in events:
        step = time // steps.size
        inside = step >= steps.first and (steps.end is None or step < steps.end)
        if inside and code(item) is not None:
            found[step][user].add(item)
    people = hashed_all(made.noise.derive("user hash"), {user for by_user in found.values() for user in by_user})
    times, known, kept = Counter(), defaultdict(set), []
    chosen = random_ones(made, found) if made.chooses_randomly else None
    in_window = limit if made.dropped_share is None else limit + made.dropped_share.clip
    for step in sorted(found):
        order = item_order(made, step)
        for user, items in found[step].items():
            person = people[user]
            coded = {code(item): item for item in items}
            possible = sorted(coded, key=lambda key: lot(order, person, key))[:in_window]
            if made.mechanism.over == "start":
                possible = [key for key in possible if key not in known[user]]
            some = [key for key in possible if chosen is None or (step, key) in chosen[user]]
            allowed = made.bound.in_run
            if made.bound.paced and not made.bound.sampled and steps.count:
                allowed = made.bound.allowed(steps.number(step), steps.count)
            for key in some[: max(0, allowed - times[user])][:at_once]:
                times[user] += 1
                known[user].add(key)
                kept.append((step, coded[key], user))
    return kept


def item_order(made: KeyedCounts, step: int):
    """Return what draws a person's random order of items: one for all windows where random items count once."""
    once = made.chooses_randomly and made.mechanism.over == "start"
    return made.noise.derive("item order", made.steps.first if once else step)


def random_ones(made: KeyedCounts, found) -> dict[str, set[tuple[int, int]]]:
    """Return the contributions of each person that count: of each window, and then of the run, those of least lot."""
    code, limit, kept = coder(made), made.mechanism.contributions, defaultdict(list)
    people = hashed_all(made.noise.derive("user hash"), {user for by_user in found.values() for user in by_user})
    for step in sorted(found):
        order = item_order(made, step)
        for user, items in found[step].items():
            person, known = people[user], {key for _, (_, key) in kept[user]}
            lots = sorted(
                (lot(order, person, code(item)), (step, code(item)))
                for item in items
                if made.mechanism.over != "start" or code(item) not in known
            )
            kept[user] += lots[: made.mechanism.contributions_per_window]
    return {user: {place for _, place in sorted(lots)[:limit]} for user, lots in kept.items()}


def on_list(made: KeyedCounts, kept: list[Contribution]) -> set[Contribution]:
    """Return the contributions with which a person begins to count for an item on the list of different people."""
    if not getattr(made.mechanism, "listed", 0):
        return set()
    entries, found = defaultdict(set), set()
    for step, item, user in kept:
        mine, first = entries[user], made.steps.first
        if step + 1 - first > made.mechanism.last_listed or item in mine:
            continue
        if len(mine) < made.mechanism.listed:
            mine.add(item)
            found.add((step, item, user))
    return found


def coder(made: KeyedCounts):
    """Return what gives the number of an item, or None if it is on no list."""
    if made.domain is None:
        return functools.cache(functools.partial(hashed, made.noise.derive("item hash")))
    known = {made.domain[place]: place for place in range(len(made.domain))}
    return known.get


def expected(made: KeyedCounts, events) -> list[KeyCount]:
    """Return the rows that the transform must give, sorted: the mechanism on exact counts, all keys in one shard, and
    the view of the last windows, or, over files, what is released."""
    kept, code, rows, tables = contributions(made, events), coder(made), [], {}
    mechanism = replace(made.mechanism, over="window") if made.mechanism.windows > 1 else made.mechanism
    view = made.shown
    entries, lists = on_list(made, kept), getattr(made.mechanism, "listed", 0) > 0
    names = {code(item): item for _, item, _ in kept}
    by_step = defaultdict(list)
    for at, item, user in kept:
        by_step[at].append((item, user))
    if made.domain is not None:
        names = {place: made.domain[place] for place in range(len(made.domain))}
    public = [] if made.public_items is None else sorted(made.public_items.texts.to_pylist(), key=code)
    names |= {code(item): item for item in public}
    known = [] if made.domain is None else [np.arange(len(names), dtype=np.uint64)]
    state = mechanism.initial_state(*known, **({"public": len(public)} if made.remembers else {}))
    numbers = [code(item) for item in public]
    first = made.steps.first
    for step in range(first, made.steps.end) if made.steps.end else sorted({step for step, *_ in kept}):
        counts, listed = Counter(), Counter()
        for item, user in by_step[step]:
            counts[code(item)] += 1
            listed[code(item)] += (step, item, user) in entries
        numbers += sorted(set(counts) - set(numbers))
        given = KeyedStep(
            step=step + 1 - first,
            keys=np.array([numbers.index(key) for key in counts] if made.domain is None else list(counts), np.uint64),
            counts=np.array(list(counts.values()), np.int64),
            listed=np.array([listed[key] for key in counts], np.int64) if lists and made.mechanism.listed else None,
            names=np.array(numbers, np.uint64) if made.domain is None else None,
        )
        state, found = mechanism.step(state, given, made.counting_noise)
        raw = []
        for rows_of_step in (found, *found.earlier):
            keys = [numbers[number] for number in rows_of_step.keys.tolist()] if made.domain is None else None
            texts = [names[key] for key in keys or rows_of_step.keys.tolist()]
            raw += key_counts(made, step, found.step - rows_of_step.step, texts, rows_of_step)
        if made.ended or not raw:
            rows += raw
            continue
        before = [table for when, table in tables.items() if when > step - view.lookback]
        tables[step] = table_of(raw)
        rows += rows_of(
            made.row_type, view.chosen(view.newest(before, tables[step], made.steps.bounds_micros(step)[0]))
        )
    return sorted(rows)


def table_of(rows) -> pa.Table:
    """Return rows as a table with times in microseconds."""
    columns = dict(zip(rows[0]._fields, zip(*rows, strict=True), strict=True))
    return pa.table({name: [getattr(one, "micros", one) for one in column] for name, column in columns.items()})


def rows_in(made, elements):
    """Return the rows of what a transform gives."""
    if not getattr(made, "ended", False):
        return list(elements)
    return [row for _, data in elements for row in rows_of(made.released_type, from_stream(data))]


def key_counts(made: KeyedCounts, step: int, back: int, texts: list[str], found: KeyedRows):
    """Yield the rows that are published at a step about the one so many steps before."""
    start = Timestamp(micros=(step - back) * made.steps.size)
    for item, count in zip(texts, found.counts, strict=True):
        window = (start, Timestamp(micros=start.micros + made.steps.size))
        yield made.released_type(*window, item, count)


def answers(made: KeyedCounts, events) -> dict[tuple[int, str], int]:
    """Return the exact answers by number of the window, and item, where they are not 0."""
    over, first = made.mechanism.over, START // 10
    end = WINDOWS if made.steps.end else WINDOWS + 1
    span = {"window": 1, "start": WINDOWS}.get(over, over)
    found = Counter()
    for step, item, _ in contributions(made, events):
        for later in range(step - first, min(end, step - first + span)):
            found[later, item] += 1
    return found


def exact(chain):
    """Return what was counted before noise: (step, item) -> (contributions, people who are new)."""
    found = {}
    for _, record in chain.counted:
        (step,), batch = STEP.unpack_from(record), CountBatch.read([record[STEP.size :]])
        people = batch.counts if batch.new is None else batch.new
        for item, *numbers in zip(batch.items.tolist(), batch.counts.tolist(), people.tolist(), strict=True):
            name = (chain.made.domain or batch.names)[item]
            before = found.get((step, name), (0, 0))
            found[step, name] = tuple(a + b for a, b in zip(before, numbers, strict=True))
    return found
