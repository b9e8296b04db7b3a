"""Top-k with gaps beside OpenDP's noisy top-k and noisy max (if installed): accuracy and CPU time, same queries.

Usage: python benchmarks/free_gap_peers.py [--quick] [--runs 100] [--repeats 1]

Both protect monotone counts with the same epsilon. OpenDP returns the indices; privstream returns the gaps too. OpenDP
draws from the system's randomness, one number at a time, and takes and gives Python lists, which is counted.
"""

import functools
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _free_gap import QUEST, Rows, datasets, picture, save
from _report import load_average, parser, print_table, results_folder, write_csv
from matplotlib.ticker import PercentFormatter
from privstream.mechanisms.free_gap.noisy_top_k import NoisyTopK
from privstream.mechanisms.noise.sources import KeyedNoise

COLOURS = {"privstream": "tab:blue", "opendp": "tab:orange"}
OPENDP_MOST = 10_000_000  # counts times k: ten seconds
EPSILONS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
Select = Callable[[np.ndarray, int], list[int]]  # counts and the number of the run to indices


def ours(k: int, epsilon: float) -> Select:
    mechanism = NoisyTopK(epsilon=epsilon, top=k, integer=True, monotone=True)
    root = KeyedNoise(b"a benchmark, not a secret", f"{k} {epsilon}")
    return lambda counts, run: mechanism.select(counts, root.derive(run)).indices.tolist()


def opendp(k: int, epsilon: float) -> Select:
    import opendp.prelude as dp  # noqa: PLC0415

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int, monotonic=True), dp.max_divergence()
    if k == 1:
        noisy_max = dp.m.make_noisy_max(*space, scale=1 / epsilon)
        check_equal(noisy_max.map(1), epsilon)
        return lambda counts, _: [noisy_max(counts.tolist())]
    top_k = dp.m.make_noisy_top_k(*space, k=k, scale=k / epsilon)
    check_equal(top_k.map(1), epsilon)
    return lambda counts, _: list(top_k(counts.tolist()))


def check_equal(found: float, epsilon: float) -> None:
    if abs(found / epsilon - 1) > 1e-9:
        raise ValueError(f"the peer must have epsilon {epsilon}, got {found}")


@functools.cache
def libraries() -> dict[str, Callable[[int, float], Select]]:
    if importlib.util.find_spec("opendp") is None:
        print("OpenDP is not installed: pip install 'privstream[bench]'")
        return {"privstream": ours}
    return {"privstream": ours, "opendp": opendp}


def accuracy(counts: np.ndarray, runs: int) -> Rows:
    rows = []
    for k in (1, 10):
        best = np.sort(counts)[-k:]
        for epsilon in EPSILONS:
            for library, make in libraries().items():
                select = make(k, epsilon)
                returned = np.array([counts[select(counts, run)] for run in range(runs)])
                row: dict[str, Any] = {"library": library, "k": k, "epsilon": epsilon, "runs": runs}
                row["found"] = round(float((returned >= best[0]).mean()), 4)
                row["mean_shortfall"] = round(float(best.mean() - returned.mean()), 1)
                rows.append(row)
    return rows


def seconds(sizes: tuple[int, ...], repeats: int) -> Rows:
    rows = []
    for size in sizes:
        counts = np.random.default_rng(6).permutation(3 * size // np.arange(1, size + 1))
        for k in (1, 100):
            for library, make in libraries().items():
                if library == "opendp" and size * k > OPENDP_MOST:
                    continue
                row = {
                    "library": library,
                    "counts": size,
                    "k": k,
                    "cpu_seconds": best_seconds(make(k, 1.0), counts, repeats),
                }
                rows.append(row | {"load_average": load_average()})
    return rows


def best_seconds(select: Select, counts: np.ndarray, repeats: int) -> float:
    found = []
    for run in range(repeats):
        start = time.process_time()
        select(counts, run)
        found.append(time.process_time() - start)
    return round(min(found), 5)


def plot(accurate: Rows, fast: Rows, path: Path) -> None:
    figure, (share, times) = picture(2)
    for library, colour in COLOURS.items():
        marker = "o" if library == "opendp" else "x"
        for k, line in ((1, ":"), (10, "-"), (100, "-")):
            style = {"linestyle": line, "marker": marker, "color": colour, "label": f"{library}, k = {k}"}
            own = [row for row in accurate if (row["library"], row["k"]) == (library, k)]
            if own:
                share.plot([r["epsilon"] for r in own], [r["found"] for r in own], fillstyle="none", **style)
            own = [row for row in fast if (row["library"], row["k"]) == (library, k)]
            if own:
                times.plot([r["counts"] for r in own], [r["cpu_seconds"] for r in own], fillstyle="none", **style)
    share.set(
        xscale="log", xlabel="privacy budget epsilon", title=f"share of the true top k found, {QUEST}", ylim=(0, 1.03)
    )
    share.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    times.set(xscale="log", yscale="log", xlabel="counts", title="CPU seconds for one selection")
    for axes in (share, times):
        axes.legend(frameon=False, fontsize="small")
    save(figure, path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=100)
    arguments.add_argument("--repeats", type=int, default=1)
    options = arguments.parse_args()
    runs = 3 if options.quick else options.runs
    sizes = (200, 1_000) if options.quick else (1_000, 10_000, 100_000, 1_000_000)
    folder = results_folder(options)
    accurate = accuracy(datasets(quick=options.quick)[QUEST], runs)
    fast = seconds(sizes, options.repeats)
    write_csv(folder / "free_gap_peers_accuracy.csv", accurate)
    write_csv(folder / "free_gap_peers_seconds.csv", fast)
    plot(accurate, fast, folder / "free_gap_peers.png")
    print_table("accuracy", accurate)
    print_table("seconds", fast)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
