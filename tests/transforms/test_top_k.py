"""Top-k by free gaps: in every window what the mechanism says of exact counts, on every runner."""

import random

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from event_forms import SECOND, as_rows, of_elements
from every_runner import one_job
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, TopKWithGap
from privstream.transforms.row_types import RankedItem

START, WINDOWS, ITEMS = 1000, 4, ("a", "b", "c", "d")
MADE = TopKWithGap(
    epsilon=2.0, top=2, max_per_window=4, method="gaps", domain=Domain(ITEMS), window=10, start=START,
    end=START + 10 * WINDOWS, noise=KeyedNoise(b"a key for tests of ranks"),
)  # fmt: skip


def random_events() -> list[tuple[str, str, int]]:
    """Return events of 60 people, some twice, some of no listed item, some outside of the run; window 2 is empty."""
    chance, found = random.Random(3), []
    for _ in range(400):
        time = (START - 10) * SECOND + chance.randrange(10 * (WINDOWS + 2) * SECOND)
        if not 20 <= time // SECOND - START < 30:
            found.append((f"user {chance.randrange(60)}", chance.choices([*ITEMS, "other"], [5, 4, 3, 1, 1])[0], time))
    return found + found[:40]


def expected(events: list[tuple[str, str, int]]) -> list[RankedItem]:
    """Return the rows, by plain counting of different people."""
    rows = []
    for number in range(WINDOWS):
        begin, end = START + 10 * number, START + 10 * number + 10
        held = {(user, item) for user, item, time in events if begin <= time / SECOND < end}
        counts = np.array([sum(item == each for _, each in held) for item in ITEMS])
        noise = MADE.publishing_noise.derive("step", MADE.steps.first + number)
        found = MADE.mechanism.release(counts, noise)
        numbers = zip(found.indices, found.gaps, found.estimates, found.lower, found.upper, strict=True)
        for rank, (place, *others) in enumerate(numbers, start=1):
            rows.append(RankedItem(Timestamp(begin), Timestamp(end), rank, ITEMS[place], *map(float, others)))
    return sorted(rows)


@one_job("points")
def test_rows_are_those_of_the_reference():
    events = random_events()
    results = yield of_elements(as_rows(events), MADE)
    rows = sorted(results.elements("rows"))
    assert rows == expected(events) and len(rows) == 2 * WINDOWS
    assert results.elements("dead") == []
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])
