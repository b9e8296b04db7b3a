"""Shifting heavy hitters the slow way: dictionaries, no shards, no batches, no pruning."""

from collections import Counter, defaultdict

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.keyed_counts.key_table import KeyedStep
from privstream.mechanisms.monitor.threshold_monitor import Holdings
from privstream.mechanisms.noise.routed import RoutedNoise, SourcesByName
from privstream.transforms import HeavyHitter, ShiftingHeavyHitters

Event = tuple[str, str, int, str]  # user, item, microseconds, stream


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
    holdings: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))  # [step][stream][user][item] = times
    known = None if transform.domain is None else [transform.domain[i] for i in range(len(transform.domain))]
    tests_domain = known is not None and transform.steps.count is not None
    people = hashed_all(noise.derive("user hash"), {user for user, *_ in events})
    codes = hashed_all(noise.derive("item hash"), {item for _, item, *_ in events})
    for user, item, time, stream in events:
        if transform.streams is not None and stream not in transform.streams:
            continue
        if known is not None and item not in known:
            continue
        code = known.index(item) if tests_domain else codes[item]
        names[code] = item
        step = time // steps.period
        while step >= 0 and time < step * steps.period + steps.size:
            if (steps.first is None or step >= steps.first) and (steps.end is None or step < steps.end):
                holdings[step][stream][people[user]].setdefault(code, []).append(time)
            step -= 1
    kept = {
        step: {
            stream: {person: bounded(transform, stream, step, person, items) for person, items in people.items()}
            for stream, people in by_stream.items()
        }
        for step, by_stream in holdings.items()
    }
    limit_people(transform, kept)
    if tests_domain:
        names = dict(enumerate(known))
        for step in range(steps.first, steps.end):
            for stream in transform.streams or ("",):
                kept.setdefault(step, {}).setdefault(stream, {})
    if transform.method == "status":
        return sorted(follow(transform, kept, names))
    if transform.method == "counts" and transform.answer.remembers:
        return with_streaks(remember(transform, kept, names), transform.steps.period)
    return with_streaks(decide(transform, kept, names), transform.steps.period)


def with_streaks(rows: list[HeavyHitter], period: int) -> list[HeavyHitter]:
    """Let a report go on that was there one window before."""
    since: dict[tuple, Timestamp] = {}
    found = []
    for row in sorted(rows, key=lambda row: row.window_start):
        first = since.get((row.stream, row.item, row.window_start.micros - period))
        found.append(row if first is None else row._replace(since=first, status="continues"))
        since[row.stream, row.item, row.window_start.micros] = found[-1].since
    return sorted(found)


def bounded(transform, stream: str, step: int, person: int, items: dict[int, list[int]]) -> list[int]:
    """Return the items of a person that count, in order of rank."""
    order = transform.noise.derive("item order", stream, step)
    priority = {
        "last": lambda item: (-max(items[item]), item),
        "first": lambda item: (min(items[item]), item),
        "random": lambda item: (lot(order, person, item), item),
    }[transform.selection]
    chosen = sorted(items, key=priority)[: transform.items_per_step]
    return sorted(chosen, key=lambda item: (lot(order, person, item), item))


def limit_people(transform, kept: dict) -> None:
    """Leave out people who have taken part often enough."""
    participations: dict[int, int] = defaultdict(int)
    streams_of: dict[int, set[str]] = defaultdict(set)
    for step in sorted(kept):
        drawn = {stream: transform.noise.derive("person in stream", stream) for stream in kept[step]}
        taking_part = sorted(
            (lot(drawn[stream], person), stream, person) for stream, people in kept[step].items() for person in people
        )
        for _, stream, person in taking_part:
            most = transform.streams_per_person
            joins = stream not in streams_of[person]
            if most is not None and joins and len(streams_of[person]) >= most:
                del kept[step][stream][person]
                continue
            streams_of[person].add(stream)
            cap = transform._participations
            if cap is not None and participations[person] >= cap:
                del kept[step][stream][person]
                continue
            participations[person] += 1


def decide(transform, kept: dict, names: dict[int, str]) -> list[HeavyHitter]:
    """Run one monitor per stream over all holders, or publish noisy counts of them."""
    if transform.method == "counts":
        return count(transform, kept, names)
    monitor, rows = transform.answer.monitor, []
    for stream in sorted({stream for by_stream in kept.values() for stream in by_stream}):
        state = monitor.initial_state()
        noise = transform.noise.derive("stream", stream)
        for step in sorted(step for step in kept if stream in kept[step]):
            state, hits = monitor.step(state, held_by(kept[step][stream], step), noise)
            counts = hits.counts.tolist() or [None] * len(hits.items)
            start = step * transform.steps.period
            rows += [
                in_time(
                    (stream, Timestamp(micros=start), Timestamp(micros=start + transform.steps.size), names[item]),
                    count,
                    monitor.count_stddev,
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
    """Run one status monitor per stream over all windows of the run; long enough, where it has no bounds."""
    monitor, steps, rows = transform.answer.monitor, transform.steps, []
    for stream in sorted({stream for by_stream in kept.values() for stream in by_stream}):
        state, noise = monitor.initial_state(), transform.noise.derive("stream", stream)
        step = min(kept) if steps.first is None else steps.first
        while (step <= max(kept) or len(state.up)) if steps.end is None else step < steps.end:
            state, found = monitor.step(state, held_by(kept.get(step, {}).get(stream, {}), step), noise)
            start = Timestamp(micros=step * steps.period)
            counts = found.counts.tolist() or [None] * len(found.items)
            columns = (found.items.tolist(), counts, found.since.tolist(), found.status.tolist())
            rows += [
                in_time(
                    (stream, start, Timestamp(micros=start.micros + steps.size), names[item]),
                    None if status == 1 else count,
                    monitor.count_stddev,
                    monitor.count_error(0.05),
                    Timestamp(micros=since * steps.period),
                    ("started", "continues", "ended")[status],
                )
                for item, count, since, status in zip(*columns, strict=True)
            ]
            step += 1
    return rows


def count(transform, kept: dict, names: dict[int, str]) -> list[HeavyHitter]:
    """Count all holders of all items; of a public list, all items in every window."""
    counts, rows = transform.answer.counts, []
    listed = np.array(sorted(names) if counts.public_keys else [], np.uint64)
    for stream in sorted({stream for by_stream in kept.values() for stream in by_stream}):
        state = start = counts.initial_state(listed if counts.public_keys else None)
        noise = transform.answer.noise.derive("stream", stream)
        for step in sorted(step for step in kept if stream in kept[step]):
            held = Counter(item for items in kept[step][stream].values() for item in items)
            keys = np.union1d(listed, np.array([*held], np.uint64))
            given = KeyedStep(
                step=step + 1 - (transform.steps.first or 0),
                keys=keys,
                counts=np.array([held[key] for key in keys.tolist()], np.int64),
            )
            state, found = counts.step(state if counts.public_keys else start, given, noise)
            begin = step * transform.steps.period
            ends = Timestamp(micros=begin), Timestamp(micros=begin + transform.steps.size)
            rows += [
                in_time((stream, *ends, names[key]), noisy, found.count_stddev, found.count_spread)
                for key, noisy in zip(found.keys.tolist(), found.counts.tolist(), strict=True)
                if noisy >= transform.answer.threshold
            ]
    return rows


def in_time(about: tuple, count: int | None, stddev: float, spread: int, since=None, status="started") -> HeavyHitter:
    """Return a row that is published after its own window."""
    ends = (None, None) if count is None else (max(0, count - spread), max(0, count + spread))
    known = (None, None) if count is None else (count, stddev)
    return HeavyHitter(*about, *known, since or about[1], status, *ends, None, None, None, about[2], False)


def remember(transform, kept: dict, names: dict[int, str]) -> list[HeavyHitter]:
    """Count all holders of all items in every window, and report those found where they surely are, in one shard."""
    counts, steps, rows = transform.answer.counts, transform.steps, []
    for stream in transform.streams or ("",):
        noise = transform.answer.noise.derive("stream", stream)
        public = [] if transform.public_items is None else transform.public_items.texts.to_pylist()
        numbers = [hashed(transform.noise.derive("item hash"), item) for item in public]
        names |= dict(zip(numbers, public, strict=True))
        state = counts.initial_state(public=len(public))
        for step in range(steps.first, steps.end):
            people = kept.get(step, {}).get(stream, {})
            held = Counter(item for items in people.values() for item in items)
            numbers += sorted(set(held) - set(numbers))
            given = KeyedStep(
                step=step + 1 - steps.first,
                keys=np.array([numbers.index(key) for key in held], np.uint64),
                counts=np.array(list(held.values()), np.int64),
            )
            drawn = RoutedNoise(
                SourcesByName(lambda _, noise=noise: noise),
                [""],
                np.zeros(len(numbers), np.int64),
                np.array(numbers, np.uint64),
            )
            state, found = counts.step(state, given, drawn)
            for one in (*found.earlier, found):  # in the order of windows
                at, back = step - found.step + one.step, found.step - one.step
                for place, (number, count) in enumerate(zip(one.keys.tolist(), one.counts.tolist(), strict=True)):
                    about = (stream, *bounds(steps, at), names[numbers[number]])
                    row = in_time(about, count, one.count_stddev, one.count_spread)
                    ends = [float(part[place]) for part in one.smoothed]
                    smoothed = dict(zip(("smoothed", "smoothed_lower", "smoothed_upper"), ends, strict=True))
                    if ends[1] > 0:
                        rows.append(row._replace(**smoothed, reported_at=bounds(steps, step)[1], backfilled=back > 0))
    return rows


def bounds(steps, step: int) -> tuple[Timestamp, Timestamp]:
    begin = step * steps.period
    return Timestamp(micros=begin), Timestamp(micros=begin + steps.size)
