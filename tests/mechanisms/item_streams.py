"""Holdings for tests of monitors: who has which of six items at each step."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from laws import FALSE_ALARM
from privstream.mechanisms.monitor.monitor import Holdings
from privstream.mechanisms.noise.sources import SeededNoise
from scipy import stats

DOMAIN = 6


def ids(values):
    return np.asarray(values, dtype=np.uint64)


def holdings(step, rows):
    """Make holdings from triples of person, item and rank."""
    users, items, ranks = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return Holdings(step=step, users=ids(users), items=ids(items), ranks=np.array(ranks, np.uint16))


def goes_up(monitor, step, items, counts, noise):
    """Return which items an up-test finds with these numbers of people, by the draws of the mechanism alone."""
    return np.asarray(counts) >= monitor._thresholds(step, items, monitor._source(noise))


def stays_up(monitor, step, items, counts, noise):
    """Return which items that are up stay so."""
    return np.asarray(counts) >= monitor._end_thresholds(step, items, monitor._source(noise))


def run(monitor, stream, noise, state=None):
    """Return the states before and after each step, and what is published in it."""
    states, outputs = [monitor.initial_state() if state is None else state], []
    for given in stream:
        state, published = monitor.step(states[-1], given, noise)
        states.append(state)
        outputs.append(published)
    return states, outputs


def crowds(counts, repeats, step=0):
    """Return holdings in which each count occurs in `repeats` items, and the count of each item."""
    held = np.tile(counts, repeats)
    people = np.arange(held.sum(), dtype=np.uint64)
    return Holdings(step=step, users=people, items=np.repeat(np.arange(len(held), dtype=np.uint64), held)), held


def check_frequencies(items, held, counts, repeats, stated):
    """Check that as many items of each count are among some as is stated, and not as with 30% more noise, or less."""
    found = np.array([np.count_nonzero(held[items.astype(np.int64)] == count) for count in counts])
    for factor in (1, 1.3, 1 / 1.3):
        moved = counts[1] + (counts - counts[1]) / factor
        chances = np.clip(np.interp(moved, np.arange(len(stated)), stated), 1e-6, 1 - 1e-6)
        statistic = np.sum((found - repeats * chances) ** 2 / (repeats * chances * (1 - chances)))
        assert (stats.chi2.sf(statistic, len(counts)) < FALSE_ALARM) == (factor != 1)


def check_order_and_snapshots(monitor, stream, seed):
    """Check that the order of rows, and snapshots after each step, change nothing."""
    noise, rng = SeededNoise(seed), np.random.default_rng(seed)
    states, outputs = run(monitor, [holdings(i, rows) for i, rows in enumerate(stream)], noise)
    state = monitor.initial_state()
    for i, rows in enumerate(stream):
        state = replace(monitor).restore(monitor.snapshot(state))
        state, found = monitor.step(state, holdings(i, [rows[j] for j in rng.permutation(len(rows))]), noise)
        columns = zip(vars(found).values(), vars(outputs[i]).values(), strict=True)
        assert all(np.array_equal(one, other) for one, other in columns)
        assert monitor.snapshot(state) == monitor.snapshot(states[i + 1])


@st.composite
def streams(draw, steps=6, most_people=40):
    """Draw what a few people hold at each step: up to three of six items, in an order of their own."""
    people = draw(st.integers(0, most_people))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    stream = []
    for _ in range(steps):
        favourite = rng.integers(0, DOMAIN)  # held by many
        rows = []
        for person in range(people):
            held = rng.permutation(DOMAIN)[: rng.integers(0, 4)]
            if len(held) and rng.random() < 0.6 and favourite not in held:
                held[0] = favourite
            rows += [(person, item, rank) for rank, item in enumerate(rng.permutation(held))]
        stream.append([rows[i] for i in rng.permutation(len(rows))])
    return stream
