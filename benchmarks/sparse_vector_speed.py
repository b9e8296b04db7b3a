"""Sparse-vector tests per CPU second, by size of the batch, against OpenDP's noise and plain numpy in the same run.

Usage: python benchmarks/sparse_vector_speed.py [--quick] [--tests 1000000] [--repeats 5]

Writes sparse_vector_speed.csv and .png to benchmarks/results. All queries are far below their threshold, so that runs
go on: misses are what there are many of. OpenDP has no sparse vector technique; its exact noise on a vector of queries,
with nothing compared, is the least that one would need. numpy adds floating-point noise, neither exact nor keyed.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _measure import best_seconds
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.figure import Figure
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.papers.sparse_vector import AboveThreshold, SparseVectorWithGap
from privstream.mechanisms.sparse_vector.sparse import Sparse
from privstream.transforms import AlertRule, SparseVectorAlerts
from privstream.transforms.alerts.threshold_tests import ONE_RUN, TestCounts, encode_counts

BATCHES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
THRESHOLD = 10**6
OPENDP_SHARE = 20  # OpenDP draws one by one and gets fewer queries
CALLS = 2_000  # of the smallest batches at most
SEVERAL = 10  # rules of alerts
Row = tuple[str, str, int, int, Callable[[], Any]]


def ours(tests: int) -> Iterator[Row]:
    noise = KeyedNoise.random().derive("benchmark")
    mechanisms: dict[str, Any] = {
        "AboveThreshold": AboveThreshold(epsilon=1.0, threshold=THRESHOLD, integer=True),
        "Sparse": Sparse(epsilon=1.0, max_hits=10, threshold=THRESHOLD, integer=True),
        "SparseVectorWithGap": SparseVectorWithGap(epsilon=1.0, max_hits=10, threshold=THRESHOLD, integer=True),
        "AdaptiveSparseVector": AdaptiveSparseVector(epsilon=1.0, min_hits=10, threshold=THRESHOLD, integer=True),
    }
    for name, mechanism in mechanisms.items():
        for batch in BATCHES:
            if batch <= tests:
                yield "privstream", name, batch, *in_batches(mechanism, batch, tests, noise)


def in_batches(mechanism: Any, batch: int, tests: int, noise: Any) -> tuple[int, Callable[[], Any]]:
    """Return how many tests a run makes, and the run."""
    values = np.random.default_rng(1).integers(0, 1000, batch)
    calls = min(CALLS, tests // batch)

    def run() -> None:
        state = mechanism.initial_state()
        for _ in range(calls):
            state, _ = mechanism.step(state, values, noise)

    return calls * batch, run


def alerts(tests: int) -> Iterator[Row]:
    """The last stage of `SparseVectorAlerts`, window by window: state, rules and rows included."""
    rules = [AlertRule(name=f"rule {i}", at_least=THRESHOLD) for i in range(SEVERAL)]
    windows = min(CALLS, max(1, tests // SEVERAL))
    made = SparseVectorAlerts(
        epsilon=1.0,
        rules=rules,
        window=1,
        start=0,
        end=windows,
        noise=KeyedNoise.random(),
        method="sparse_vector",
    )
    fn = TestCounts(plan=made.plan, steps=made.steps, timer_offset=3, noise=made.noise)
    batch = [encode_counts(("",), np.arange(SEVERAL)[None])]

    def run() -> None:
        state = fn.initial(ONE_RUN)
        for window in range(windows):
            state, _ = fn.advance(ONE_RUN, window, batch, state)

    yield "privstream", f"alerts, {SEVERAL} rules in a window", SEVERAL, windows * SEVERAL, run


def numpy_peer(tests: int) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    for batch in BATCHES:
        if batch > tests:
            continue
        values, calls = rng.integers(0, 1000, batch), min(CALLS, tests // batch)

        def run(values: Any = values, calls: int = calls) -> None:
            barrier = THRESHOLD + rng.laplace(scale=2.0)
            for _ in range(calls):
                (values + rng.laplace(scale=4.0, size=len(values)) >= barrier).any()

        yield "numpy", "floating-point sparse vector", batch, calls * batch, run


def opendp_peer(tests: int) -> Iterator[Row]:
    if importlib.util.find_spec("opendp") is None:
        print("OpenDP is not installed: pip install 'privstream[bench]'")
        return
    import opendp.prelude as dp  # noqa: PLC0415

    dp.enable_features("contrib")
    laplace = dp.m.make_laplace(dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int), 4.0)
    for batch in (100, 10_000, max(1, tests // OPENDP_SHARE)):
        values, calls = [5] * batch, max(1, min(CALLS, tests // OPENDP_SHARE // batch))
        yield (
            "opendp",
            "noise alone",
            batch,
            calls * batch,
            lambda values=values, calls=calls: [laplace(values) for _ in range(calls)],
        )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for library, name in dict.fromkeys((row["library"], row["algorithm"]) for row in rows):
        mine = [row for row in rows if (row["library"], row["algorithm"]) == (library, name)]
        style = {"privstream": "o-", "opendp": "s--", "numpy": "^:"}[library]
        x, y = [row["batch"] for row in mine], [row["tests_per_second"] for row in mine]
        axes.plot(x, y, style, label=name if library == "privstream" else f"{library}: {name}")
    axes.axhline(1e6, color="tab:grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="queries in a batch", ylabel="tests per second of one core")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tests", type=int, default=1_000_000)
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    if options.quick:
        options.tests, options.repeats = 1_000, 1
    folder = results_folder(options)
    rows = []
    for peers in (ours, alerts, numpy_peer, opendp_peer):
        for library, name, batch, tests, run in peers(options.tests):
            run()  # builds the tables
            rate = round(tests / max(1e-9, best_seconds(run, options.repeats)[0]))
            rows.append({"library": library, "algorithm": name, "batch": batch, "tests_per_second": rate})
            rows[-1]["load_average"] = load_average()
            print(f"{library:11} {name:30} {batch:10,} {rate / 1e6:8.3f} million tests per CPU second", flush=True)
    write_csv(folder / "sparse_vector_speed.csv", rows)
    plot(rows, folder / "sparse_vector_speed.png")
    print_table("sparse-vector tests per second of one core", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
