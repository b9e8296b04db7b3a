"""Private answers by other libraries: python _peer_libraries.py LIBRARY QUESTION EVENTS OUTPUT

All get the budget of _peer_workload.py for one person in all windows together (histogram: for one event, as privstream
by default). `dp-accounting` is what one writes by hand: floating-point Gaussian noise of numpy, scaled by it.
"""

import csv
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from _peer_workload import CATEGORIES, DELTA, EPSILON, QUANTILES, START, TOP, WINDOW, Answer
from numpy.typing import NDArray

Rows = list[tuple[int, Any, Any]]


class Events:
    """The columns that a question needs, as numbers, with the window of each event."""

    def __init__(self, path: str) -> None:
        self.path = path

    def codes(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """Return a column as numbers, and what they mean."""
        column = pq.read_table(self.path, columns=[name])[name].combine_chunks().dictionary_encode()
        return column.indices.to_numpy().astype(np.int64), column.dictionary.to_pylist()

    def windows(self) -> NDArray[np.int64]:
        """Return the window of each event."""
        times = pq.read_table(self.path, columns=["time"])["time"].cast("int64").to_numpy()
        return np.asarray((times // 1_000_000 - START) // WINDOW)

    def counts(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """Return the number of different people by window and value of a column, and the values."""
        (users, people), (values, names) = self.codes("user"), self.codes(name)
        windows, width = self.windows(), len(names)
        triples = np.unique((windows * width + values) * len(people) + users)
        steps = windows.max() + 1
        return np.bincount(triples // len(people), minlength=steps * width).reshape(steps, width), names

    def values(self) -> NDArray[np.float64]:
        """Return the values, one of each person in each window: shape (windows, people)."""
        values = pq.read_table(self.path, columns=["value"])["value"].to_numpy()
        windows = self.windows()
        return np.asarray(values[np.argsort(windows, kind="stable")].reshape(windows.max() + 1, -1))

    def inside(self) -> NDArray[np.int64]:
        """Return who is in the building at the end of each window, as pairs of window and person: everybody says so."""
        moves, names = self.codes("move")
        here = moves == names.index("in")
        return np.stack([self.windows()[here], self.codes("user")[0][here]])


def top(counts: NDArray[Any], names: list[str]) -> Answer:
    """Return the largest counts of each window."""
    best = np.argsort(-counts, axis=1)[:, :TOP]
    return {(window, names[item]): float(counts[window, item]) for window, row in enumerate(best) for item in row}


def table(numbers: NDArray[Any], names: list[str]) -> Answer:
    """Return all numbers, of shape (windows, names)."""
    return {(window, names[place]): float(number) for (window, place), number in np.ndenumerate(numbers)}


# PipelineDP: its engine on its local backend, which adds up itself from rows.


def _aggregate(rows: Rows, cells: list[Any] | None, windows: int, selected: bool = False) -> dict[Any, float]:
    """Count the people of each cell, of cells that are known, or of those that it selects."""
    import pipeline_dp as dp  # noqa: PLC0415

    accountant = dp.NaiveBudgetAccountant(total_epsilon=EPSILON, total_delta=DELTA)
    engine = dp.DPEngine(accountant, dp.LocalBackend())
    extractors = dp.DataExtractors(
        privacy_id_extractor=lambda row: row[2],
        partition_extractor=lambda row: row[:2],
        value_extractor=lambda row: 0,
    )
    strategy = dp.PartitionSelectionStrategy.GAUSSIAN_THRESHOLDING
    if selected:
        choice = dp.SelectPartitionsParams(max_partitions_contributed=windows, partition_selection_strategy=strategy)
        found: Any = engine.select_partitions(rows, choice, extractors)
        accountant.compute_budgets()
        return dict.fromkeys(found, math.nan)
    parameters = dp.AggregateParams(
        noise_kind=dp.NoiseKind.GAUSSIAN,
        metrics=[dp.Metrics.PRIVACY_ID_COUNT],
        max_partitions_contributed=windows,
        max_contributions_per_partition=1,
        partition_selection_strategy=strategy,
    )
    found = engine.aggregate(rows, parameters, extractors, public_partitions=cells)
    accountant.compute_budgets()
    return {cell: metrics.privacy_id_count for cell, metrics in found}


def _rows(events: Events, column: str, people: bool = True) -> tuple[Rows, list[tuple[int, str]], int]:
    """Return rows (window, value, person), all cells that there may be, and the number of windows."""
    codes, names = events.codes(column)
    windows = events.windows()
    users = events.codes("user")[0] if people else np.arange(len(codes))
    rows = list(zip(windows.tolist(), [names[code] for code in codes.tolist()], users.tolist(), strict=True))
    steps = int(windows.max()) + 1
    return rows, [(window, name) for window in range(steps) for name in names], steps


def pipeline_dp(question: str, events: Events) -> Answer:
    if question == "quantiles":
        from numeric_quantiles import pipeline_dp as quantiles  # noqa: PLC0415

        return table(quantiles(events.values(), 0)[0], [str(quantile) for quantile in QUANTILES])
    if question == "cardinality":
        windows, people = events.inside()
        steps = int(windows.max()) + 1
        inside: Rows = [(window, "", person) for window, person in zip(windows.tolist(), people.tolist(), strict=True)]
        return _aggregate(inside, [(window, "") for window in range(steps)], steps)
    if question == "histogram":  # each event is a person of its own, and in one window
        rows, cells, steps = _rows(events, "category", people=False)
        found = _aggregate(rows, cells, 1)
        names = sorted({name for _, name in cells})
        counted = np.array([[found[window, name] for name in names] for window in range(steps)])
        return table(np.cumsum(counted, axis=0), names)
    rows, cells, steps = _rows(events, "item")
    if question == "top-k":
        found = _aggregate(rows, cells, steps)
        names = sorted({name for _, name in cells})
        return top(np.array([[found[window, name] for name in names] for window in range(steps)]), names)
    return _aggregate(rows, None, steps, selected=question == "heavy-hitters")


# OpenDP: numbers come from numpy, noise and accounting are its own.


def open_dp(question: str, events: Events) -> Answer:
    import opendp.prelude as dp  # noqa: PLC0415
    from _keyed_peers import open_dp_counts, unit_scale  # noqa: PLC0415
    from numeric_quantiles import open_dp_exponential, open_dp_noise  # noqa: PLC0415

    dp.enable_features("contrib")

    def noisy(numbers: NDArray[Any], windows: int) -> NDArray[Any]:
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
        release = dp.m.make_gaussian(*space, scale=unit_scale(EPSILON, DELTA) * math.sqrt(windows))
        return np.array(release(numbers.reshape(-1).tolist())).reshape(numbers.shape)

    if question == "quantiles":
        return table(open_dp_exponential(events.values(), 0)[0], [str(quantile) for quantile in QUANTILES])
    if question == "cardinality":
        sizes = np.bincount(events.inside()[0])
        return table(noisy(sizes[:, None], len(sizes)), [""])
    if question == "histogram":
        counts, names = events_by_category(events)
        return table(np.cumsum(noisy(counts, 1), axis=0), names)
    counts, names = events.counts("item")
    if question == "top-k":
        measure, budget = open_dp_noise(True)
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int, monotonic=True), measure
        select = dp.binary_search_chain(
            lambda scale: dp.m.make_noisy_top_k(*space, k=TOP, scale=scale), d_in=1, d_out=budget / len(counts)
        )
        return {(window, names[item]): math.nan for window, row in enumerate(counts) for item in select(row.tolist())}
    released = open_dp_counts(counts.reshape(-1), EPSILON, DELTA, len(counts))
    return {(cell // len(names), names[cell % len(names)]): number for cell, number in released.items()}


def events_by_category(events: Events) -> tuple[NDArray[np.int64], list[str]]:
    """Return the number of events by window and category, and the categories."""
    codes, names = events.codes("category")
    cells = events.windows() * len(names) + codes
    return np.bincount(cells).reshape(-1, len(names)), names


# Written by hand with dp-accounting; jax-privacy has noise for running sums.


def by_hand(question: str, events: Events) -> Answer:
    from dp_accounting.pld.common import DifferentialPrivacyParameters  # noqa: PLC0415
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss  # noqa: PLC0415
    from scipy import stats  # noqa: PLC0415

    def noisy(numbers: NDArray[Any], windows: int, delta: float = DELTA) -> tuple[NDArray[Any], float]:
        budget = DifferentialPrivacyParameters(EPSILON, delta)
        sigma = GaussianPrivacyLoss.from_privacy_guarantee(budget, math.sqrt(windows)).standard_deviation
        return numbers + np.random.default_rng().normal(0, sigma, numbers.shape), sigma

    if question == "cardinality":
        sizes = np.bincount(events.inside()[0])
        return table(noisy(sizes[:, None], len(sizes))[0], [""])
    if question == "histogram":
        counts, names = events_by_category(events)
        return table(np.cumsum(noisy(counts, 1)[0], axis=0), names)
    counts, names = events.counts("item")
    if question == "top-k":
        return top(noisy(counts, len(counts))[0], names)
    # An item that one person brings alone is published with probability delta / 2 in all windows together.
    found, sigma = noisy(counts, len(counts), DELTA / 2)
    least = 1 + sigma * stats.norm.isf(DELTA / 2 / len(counts))
    return {cell: number for cell, number in table(np.where(counts > 0, found, 0), names).items() if number >= least}


def jax_privacy(question: str, events: Events) -> Answer:
    from _counters import JaxCounter  # noqa: PLC0415

    counts, names = events_by_category(events)
    noise, _ = JaxCounter(len(counts)).noise(len(counts), CATEGORIES, block=len(counts))
    return table(np.cumsum(counts, axis=0) + noise[:, : len(names)], names)


LIBRARIES: dict[str, Callable[[str, Events], Answer]] = {
    "pipeline-dp": pipeline_dp,
    "opendp": open_dp,
    "dp-accounting": by_hand,
    "jax-privacy": jax_privacy,
}


def write(answer: Answer, path: str) -> None:
    """Write an answer as rows of window, item and number."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows((*cell, number) for cell, number in answer.items())


if __name__ == "__main__":
    library, asked, given, written = sys.argv[1:]
    write(LIBRARIES[library](asked, Events(given)), written)
