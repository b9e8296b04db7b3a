"""What all libraries are asked about, and how far their answers are off: one file of events, and its truth.

Everybody has one event in every hourly window: an item of many (by Zipf's law), a category of ten, a value, and a move:
whether the person is in a building then. So no library has to drop or to cut anything, and all errors are of noise.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

EPSILON, DELTA = 1.0, 1e-6
START, WINDOW = 1_704_067_200, 3600  # 2024-01-01
CATEGORIES, TOP, LEAST_PEOPLE = 10, 10, 100
QUANTILES = (0.5, 0.9, 0.99)
LOW, HIGH = 1.0, 60_000.0
ITEM, CATEGORY = "item{:05}", "category{}"

Answer = dict[tuple[int, str], float]
"""Numbers by window and item; a quantile is an item then."""


@dataclass(frozen=True)
class Workload:
    """Events of so many people in so many windows, all columns of shape (windows, people).

    Attributes:
        items, categories: numbers from 0.
        values: in [LOW, HIGH].
        inside: whether a person is in the building.
        micros: since the start of the window.
    """

    items: NDArray[np.int64]
    categories: NDArray[np.int64]
    values: NDArray[np.float64]
    inside: NDArray[np.bool_]
    micros: NDArray[np.int64]

    @classmethod
    def draw(cls, people: int, windows: int, items: int) -> "Workload":
        """Draw it, always the same."""
        rng, shape = np.random.default_rng(7), (windows, people)
        popularity = np.cumsum(1 / np.arange(1, items + 1))
        moves = np.concatenate([rng.random((1, people)) < 0.3, rng.random((windows - 1, people)) < 0.1])
        return cls(
            items=np.searchsorted(popularity, rng.random(shape) * popularity[-1]),
            categories=np.minimum(rng.geometric(0.3, shape) - 1, CATEGORIES - 1),
            values=np.clip(np.exp(rng.normal(5, 1, shape)), LOW, HIGH),
            inside=np.logical_xor.accumulate(moves),
            micros=rng.integers(WINDOW * 1_000_000, size=shape),
        )

    def write(self, path: Path) -> int:
        """Write the events in the order of time; return how many there are."""
        windows, people = self.items.shape
        times = (START + WINDOW * np.arange(windows)[:, None]) * 1_000_000 + self.micros
        order = np.argsort(times, axis=None)
        users = np.char.add("user", np.arange(people).astype("U"))
        names = np.array([ITEM.format(number) for number in range(self.items.max() + 1)])
        kinds = np.array([CATEGORY.format(number) for number in range(CATEGORIES)])
        table = pa.table(
            {
                "user": np.tile(users, windows)[order],
                "item": names[self.items.reshape(-1)[order]],
                "category": kinds[self.categories.reshape(-1)[order]],
                "value": self.values.reshape(-1)[order],
                "move": np.array(["out", "in"])[self.inside.reshape(-1)[order].astype(int)],
                "time": pa.array(times.reshape(-1)[order], pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, path, row_group_size=1 << 18)
        return len(order)

    @cached_property
    def people(self) -> NDArray[np.int64]:
        """How many people have each item: shape (windows, items)."""
        return np.array([np.bincount(row, minlength=self.items.max() + 1) for row in self.items])

    def error(self, question: str, answer: Answer) -> tuple[float, str]:
        """Return how far an answer is off, and what that is a number of."""
        return getattr(self, f"_{question.replace('-', '_')}")(answer)

    def _counts(self, answer: Answer) -> tuple[float, str]:
        many = np.argwhere(self.people >= LEAST_PEOPLE).tolist()
        off = [answer.get((window, ITEM.format(item)), 0.0) - self.people[window, item] for window, item in many]
        return _rms(off), f"people, rms over items of at least {LEAST_PEOPLE}; {len(answer):,} published"

    def _heavy_hitters(self, answer: Answer) -> tuple[float, str]:
        many = np.argwhere(self.people >= LEAST_PEOPLE).tolist()
        missed = sum((window, ITEM.format(item)) not in answer for window, item in many) / len(many)
        return 100 * missed, f"% of items of at least {LEAST_PEOPLE} people missed; {len(answer):,} reported"

    def _top_k(self, answer: Answer) -> tuple[float, str]:
        least = np.sort(self.people, axis=1)[:, -TOP]
        right = sum(self.people[window, int(item[4:])] >= least[window] for window, item in answer)
        return 100 - 100 * float(right) / least.size / TOP, f"% of the true top {TOP} missed"

    def _histogram(self, answer: Answer) -> tuple[float, str]:
        events = np.array([np.bincount(row, minlength=CATEGORIES) for row in self.categories])
        off = [
            answer.get((window, CATEGORY.format(category)), 0.0) - total
            for (window, category), total in np.ndenumerate(np.cumsum(events, axis=0))
        ]
        return _rms(off), "events, rms over windows and categories"

    def _quantiles(self, answer: Answer) -> tuple[float, str]:
        off = [
            np.searchsorted(np.sort(row), answer[window, str(quantile)]) - quantile * len(row)
            for window, row in enumerate(self.values)
            for quantile in QUANTILES
        ]
        return _rms(off), "people between true and estimated quantile, rms"

    def _cardinality(self, answer: Answer) -> tuple[float, str]:
        off = [answer[window, ""] - row.sum() for window, row in enumerate(self.inside)]
        return _rms(off), "people, rms over windows"


def _rms(off: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(off))))
