"""Quantiles of numbers, beside PipelineDP and OpenDP (if installed), with the same budget.

Usage: python benchmarks/numeric_quantiles.py [--quick] [--people 1000 10000 100000] [--windows 1 8]

Everybody has one value in each window, log-normal of median 148; the quantiles 0.5, 0.9 and 0.99 of each window are
asked for. epsilon = 1 and delta = 1e-6 pay for one person in all windows together; values are from 1 to 60,000, in
1,000 bins of equal ratios, between whose edges privstream and OpenDP's tree interpolate; the exponential mechanism
chooses among 20,000 edges, and PipelineDP has 65,536 bins of equal width. `rank_q` is the root mean square of how many
people stand between the true quantile and the estimate.

OpenDP has two ways: a tree of counts, made consistent, and an exponential mechanism for each quantile. For one window
they have Laplace noise and pure privacy, and for several ones zero-concentrated privacy over all of them, the better
choice for both. PipelineDP has the quantile trees of Google's library. Only privstream gives intervals: `inside` is the
part of them that contains the true quantile.

Writes numeric_quantiles.csv and a picture of it to benchmarks/results.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _keyed_peers import installed
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from numpy.typing import NDArray
from privstream.mechanisms import BinnedStep, NumericQuantiles, SeededNoise

EPSILON, DELTA = 1.0, 1e-6
QUANTILES = (0.5, 0.9, 0.99)
LOW, HIGH, BINS = 1.0, 60_000.0, 1000
EDGES = np.geomspace(LOW, HIGH, BINS + 1)
CANDIDATES = np.geomspace(LOW, HIGH, 20_002)[1:-1].tolist()

Floats = NDArray[np.float64]
Answers = tuple[Floats, float | None]
"""Estimates of shape (windows, quantiles), and the part of intervals that contain the quantile."""


def privstream(values: Floats, seed: int) -> Answers:
    mechanism = NumericQuantiles(
        epsilon=EPSILON,
        delta=DELTA,
        low=LOW,
        high=HIGH,
        resolution=BINS,
        scale="log",
        quantiles=QUANTILES,
        contributions=len(values),
    )
    state, noise, estimates, inside = mechanism.initial_state(), SeededNoise(seed), [], []
    for step, window in enumerate(values, start=1):
        given = BinnedStep(step=step, counts=mechanism.bins.count(window))
        state, rows = mechanism.step(state, given, noise)
        true = np.quantile(window, QUANTILES)
        estimates.append(rows.estimates)
        inside.append((rows.lower <= true) & (true <= rows.upper))
    return np.array(estimates), float(np.mean(inside))


def pipeline_dp(values: Floats, seed: int) -> Answers:
    import pipeline_dp as dp  # noqa: PLC0415

    people, windows = values.shape[1], range(len(values))
    rows = [(person, window, values[window, person]) for window in windows for person in range(people)]
    accountant = dp.NaiveBudgetAccountant(total_epsilon=EPSILON, total_delta=DELTA)
    engine = dp.DPEngine(accountant, dp.LocalBackend())
    parameters = dp.AggregateParams(
        noise_kind=dp.NoiseKind.LAPLACE if len(values) == 1 else dp.NoiseKind.GAUSSIAN,
        metrics=[dp.Metrics.PERCENTILE(100 * quantile) for quantile in QUANTILES],
        max_partitions_contributed=len(values),
        max_contributions_per_partition=1,
        min_value=LOW,
        max_value=HIGH,
    )
    extractors = dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1],
        value_extractor=lambda row: float(row[2]),
    )
    result = engine.aggregate(rows, parameters, extractors, public_partitions=list(windows))
    accountant.compute_budgets()
    found = dict(result)
    return np.array([list(found[window]) for window in windows], float), None


def open_dp_noise(several: bool) -> tuple[Any, float]:
    """Return the measure by which OpenDP adds up, and the budget for all windows."""
    import opendp.prelude as dp  # noqa: PLC0415

    dp.enable_features("contrib")
    if not several:
        return dp.max_divergence(), EPSILON
    space = dp.atom_domain(T=int), dp.absolute_distance(T=int)

    def spent(scale: float) -> float:
        return float(
            dp.c.make_fix_delta(dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale)), DELTA).map(1)[0]
        )

    scale = float(dp.binary_search(lambda scale: spent(scale) <= EPSILON, bounds=(0.01, 1e4)))
    return dp.zero_concentrated_divergence(), 1 / (2 * scale**2)


def open_dp_tree(values: Floats, seed: int) -> Answers:
    import opendp.prelude as dp  # noqa: PLC0415

    _, budget = open_dp_noise(len(values) > 1)
    branching = dp.t.choose_branching_factor(values.shape[1])
    metric = dp.L1Distance[int] if len(values) == 1 else dp.L2Distance[int]
    counts = (
        (dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance())
        >> dp.t.then_find_bin(edges=EDGES[1:-1].tolist())
        >> dp.t.then_count_by_categories(categories=list(range(BINS - 1)), null_category=True, MO=metric)
        >> dp.t.then_b_ary_tree(leaf_count=BINS, branching_factor=branching)
    )

    def made(scale: float) -> Any:
        return counts >> (dp.m.then_laplace(scale) if len(values) == 1 else dp.m.then_gaussian(scale))

    release = dp.binary_search_chain(made, d_in=1, d_out=budget / len(values))
    consistent = dp.t.make_consistent_b_ary_tree(branching)
    quantiles = dp.t.make_quantiles_from_counts(EDGES.tolist(), list(QUANTILES))
    return np.array([quantiles(consistent(release(window.tolist()))[:BINS]) for window in values]), None


def open_dp_exponential(values: Floats, seed: int) -> Answers:
    import opendp.prelude as dp  # noqa: PLC0415

    measure, budget = open_dp_noise(len(values) > 1)
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    found = []
    for quantile in QUANTILES:
        scores = space >> dp.t.then_quantile_score_candidates(CANDIDATES, quantile)

        def made(scale: float, scores: Any = scores) -> Any:
            return scores >> dp.m.then_noisy_max(measure, scale=scale, negate=True)

        select = dp.binary_search_chain(made, d_in=1, d_out=budget / values.shape[0] / len(QUANTILES))
        found.append([CANDIDATES[select(window.tolist())] for window in values])
    return np.array(found).T, None


def methods() -> dict[str, Callable[[Floats, int], Answers]]:
    """Return what is installed."""
    found: dict[str, Callable[[Floats, int], Answers]] = {"privstream": privstream}
    if installed("opendp", "OpenDP"):
        found |= {"OpenDP, tree": open_dp_tree, "OpenDP, exponential": open_dp_exponential}
    if installed("pipeline_dp", "PipelineDP"):
        found["PipelineDP"] = pipeline_dp
    return found


def rank_errors(values: Floats, estimates: Floats) -> Floats:
    """Return how many people stand between estimate and quantile, shape (windows, quantiles)."""
    below = [np.searchsorted(np.sort(window), found) for window, found in zip(values, estimates, strict=True)]
    return np.array(below) - np.array(QUANTILES) * values.shape[1]


def measure(
    name: str, answer: Callable[[Floats, int], Answers], people: int, windows: int, runs: int
) -> dict[str, Any]:
    """Return the figures of a method."""
    rng, off, inside, seconds = np.random.default_rng(5), [], [], 0.0
    for run in range(runs):
        values = np.clip(np.exp(rng.normal(5, 1, (windows, people))), LOW, HIGH)
        start = time.process_time()
        estimates, contained = answer(values, run)
        seconds += time.process_time() - start
        off.append(rank_errors(values, estimates))
        inside.append(contained)
    rms = np.sqrt(np.mean(np.concatenate(off) ** 2, axis=0))
    row: dict[str, Any] = {"method": name, "people": people, "windows": windows, "runs": runs}
    row |= {f"rank_{quantile}": round(float(error), 1) for quantile, error in zip(QUANTILES, rms, strict=True)}
    row["inside"] = None if inside[0] is None else round(float(np.mean(inside)), 4)
    return row | {"cpu_seconds": round(seconds / runs, 3), "load_average": load_average()}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(12, 4), layout="constrained")
    largest = max(row["people"] for row in rows)
    kinds = list(dict.fromkeys(row["windows"] for row in rows))
    for axes, windows in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        several = [row for row in rows if row["windows"] == windows and row["people"] == largest]
        for place, row in enumerate(several):
            offsets = np.arange(len(QUANTILES)) + place * 0.2 - 0.3
            axes.bar(offsets, [row[f"rank_{quantile}"] for quantile in QUANTILES], 0.18, label=row["method"])
        axes.set_xticks(range(len(QUANTILES)), [f"quantile {quantile:g}" for quantile in QUANTILES])
        axes.set(yscale="log", title=f"rank error, {largest:,} people, windows of a person: {windows}")
        axes.grid(alpha=0.3, axis="y")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, ncols=4, loc="outside lower center")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Run the benchmark."""
    made = parser(__doc__)
    made.add_argument("--people", type=int, nargs="+", default=[1000, 10_000, 100_000])
    made.add_argument("--windows", type=int, nargs="+", default=[1, 8])
    options = made.parse_args()
    people, windows, runs = ([500], [1, 2], 1) if options.quick else (options.people, options.windows, 20)
    rows = []
    for number in people:
        for several in windows:
            for name, answer in methods().items():
                slow = name == "PipelineDP" and number * several > 20_000
                rows.append(measure(name, answer, number, several, max(1, 3 if slow else runs)))
                print(rows[-1], flush=True)
    folder = results_folder(options)
    write_csv(folder / "numeric_quantiles.csv", rows)
    plot(rows, folder / "numeric_quantiles.png")
    print_table(f"epsilon {EPSILON:g}, delta {DELTA:g}", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
