"""Shifting heavy hitters the slow way: dictionaries, no shards, no batches, no pruning."""

from collections import defaultdict

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.monitor.monitor import Holdings
from privstream.transforms import HeavyHitter, ShiftingHeavyHitters

Event = tuple[str, str, int]  # user, item, microseconds


def hashed(noise, text: str) -> int:
    data = text.encode()
    return int(noise.hash_bytes(np.frombuffer(data, np.uint8), np.array([0, len(data)], np.int64))[0])


def hashed_all(noise, texts: set[str]) -> dict[str, int]:
    """Return the same of many texts."""
    data = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int64)
    return dict(zip(texts, noise.hash_bytes(np.frombuffer(b"".join(data), np.uint8), ends).tolist(), strict=True))


def lot(noise, *label: int) -> int:
    words = noise.words(np.array([label], np.uint64) if len(label) == 2 else np.array(label, np.uint64))
    return int(words[0, 0, 0])


def heavy_hitters(transform: ShiftingHeavyHitters, events: list[Event]) -> list[HeavyHitter]:
    """Return the rows that the transform must give, sorted."""
    noise, steps = transform.noise, transform.steps
    names: dict[int, str] = {}
    holdings: dict = defaultdict(lambda: defaultdict(dict))  # [step][user][item] = times
    known = None if transform.domain is None else [transform.domain[i] for i in range(len(transform.domain))]
    people = hashed_all(noise.derive("user hash"), {user for user, *_ in events})
    codes = hashed_all(noise.derive("item hash"), {item for _, item, *_ in events})
    for user, item, time in events:
        if known is not None and item not in known:
            continue
        code = known.index(item) if known is not None else codes[item]
        names[code] = item
        step = time // steps.size
        while step >= 0 and time < step * steps.size + steps.size:
            if step >= steps.first and (steps.end is None or step < steps.end):
                holdings[step][people[user]].setdefault(code, []).append(time)
            step -= 1
    kept = {
        step: {person: bounded(transform, step, person, items) for person, items in people.items()}
        for step, people in holdings.items()
    }
    if known is not None:
        names = dict(enumerate(known))
        for step in range(steps.first, steps.end):
            kept.setdefault(step, {})
    if transform.method == "status":
        return sorted(follow(transform, kept, names))
    return with_streaks(decide(transform, kept, names), transform.steps.size)


def with_streaks(rows: list[HeavyHitter], period: int) -> list[HeavyHitter]:
    """Let a report go on that was there one window before."""
    since: dict[tuple, Timestamp] = {}
    found = []
    for row in sorted(rows, key=lambda row: row.window_start):
        first = since.get((row.item, row.window_start.micros - period))
        found.append(row if first is None else row._replace(since=first, status="continues"))
        since[row.item, row.window_start.micros] = found[-1].since
    return sorted(found)


def bounded(transform, step: int, person: int, items: dict[int, list[int]]) -> list[int]:
    """Return the items of a person that count, in order of rank."""
    order = transform.noise.derive("item order", step)
    chosen = sorted(items, key=lambda item: (lot(order, person, item), item))[: transform.max_per_window]
    return sorted(chosen, key=lambda item: (lot(order, person, item), item))


def decide(transform, kept: dict, names: dict[int, str]) -> list[HeavyHitter]:
    """Run the monitor over all holders."""
    monitor, rows = transform.monitor, []
    state = monitor.initial_state()
    noise = transform.noise
    for step in sorted(kept):
        state, hits = monitor.step(state, held_by(kept[step], step), noise)
        counts = hits.counts.tolist() or [None] * len(hits.items)
        start = step * transform.steps.size
        rows += [
            in_time(
                (Timestamp(micros=start), Timestamp(micros=start + transform.steps.size), names[item]),
                count,
                monitor.count_error(0.05),
            )
            for item, count in zip(hits.items.tolist(), counts, strict=True)
        ]
    return rows


def held_by(people: dict[int, list[int]], step: int) -> Holdings:
    """Write as columns who has what."""
    table = [(person, item, rank) for person, items in sorted(people.items()) for rank, item in enumerate(items)]
    return Holdings(
        step=step,
        users=np.array([row[0] for row in table], np.uint64),
        items=np.array([row[1] for row in table], np.uint64),
        ranks=np.array([row[2] for row in table], np.uint16),
    )


def follow(transform, kept: dict, names: dict[int, str]) -> list[HeavyHitter]:
    """Run the status monitor over all windows of the run; long enough, where it has no bounds."""
    monitor, steps, rows = transform.monitor, transform.steps, []
    state, noise = monitor.initial_state(), transform.noise
    step = steps.first
    while (step <= max(kept) or len(state.up)) if steps.end is None else step < steps.end:
        state, found = monitor.step(state, held_by(kept.get(step, {}), step), noise)
        start = Timestamp(micros=step * steps.size)
        counts = found.counts.tolist() or [None] * len(found.items)
        columns = (found.items.tolist(), counts, found.since.tolist(), found.status.tolist())
        rows += [
            in_time(
                (start, Timestamp(micros=start.micros + steps.size), names[item]),
                None if status == 1 else count,
                monitor.count_error(0.05),
                Timestamp(micros=since * steps.size),
                ("started", "continues", "ended")[status],
            )
            for item, count, since, status in zip(*columns, strict=True)
        ]
        step += 1
    return rows


def in_time(about: tuple, count: int | None, spread: int, since=None, status="started") -> HeavyHitter:
    """Return a row that is published after its own window."""
    number = (None, None, None) if count is None else (float(count), max(0.0, count - spread), max(0.0, count + spread))
    return HeavyHitter(*about, *number, since or about[0], status)
