"""What hybrids of top-k and sparse vector save and find: figures 7 and 8 of Ding et al. (2022), Free gap estimates.

Usage: python benchmarks/free_gap_hybrid.py [--quick] [--runs 1000]

The threshold is the 12th largest count. Where more than 12 answers are paid for, a good method returns 12 and keeps the
rest of the budget. All use geometric noise; the sparse vectors spend 1 / (1 + k^(2/3)) of the budget on the threshold.
"""

from pathlib import Path
from typing import Any

import numpy as np
from _free_gap import EPSILON, MARKERS, Rows, datasets, ks, legend, markers, picture, save
from _report import parser, print_table, results_folder, write_csv
from matplotlib.ticker import FuncFormatter, PercentFormatter
from privstream.mechanisms.free_gap.noisy_top_k import NoisyTopK
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.selection import HybridNoisyTopK
from privstream.mechanisms.papers.sparse_vector import HybridSparseVector, SparseVectorWithGap

ABOVE = 12
COLOURS = {
    "noisy top-k": "tab:orange",
    "sparse vector": "0.45",
    "hybrid top-k": "tab:blue",
    "hybrid sparse vector": "tab:green",
}
LINES = {"hybrid sparse vector": "--"}  # it often lies on another line


def run(counts: np.ndarray, k: int, threshold: int, noise: SeededNoise) -> dict[str, tuple[float, float]]:
    """Return what each method leaves of the budget, and the mean of the counts that it returns."""
    common: dict[str, Any] = {"epsilon": EPSILON, "integer": True, "monotone": True}
    top = NoisyTopK(**common, top=k).select(counts, noise)
    hybrid = HybridNoisyTopK(**common, top=k, threshold=threshold).select(counts, noise)
    both = HybridSparseVector(**common, top=k, threshold=threshold).select(counts, noise)
    sparse = SparseVectorWithGap(**common, max_hits=k, threshold=threshold)
    state, answers = sparse.step(sparse.initial_state(), counts, noise)
    returned = {
        "noisy top-k": (top.spent, counts[top.indices]),
        "sparse vector": (sparse.spent(state), counts[: answers.answered][answers.hits]),
        "hybrid top-k": (hybrid.spent, counts[hybrid.indices]),
        "hybrid sparse vector": (both.spent, counts[both.indices]),
    }
    return {
        method: (1 - spent / EPSILON, float(values.mean()) if len(values) else np.nan)
        for method, (spent, values) in returned.items()
    }


def theory(method: str, k: int) -> float:
    """Return what is left if exactly the counts above the threshold are returned, or k of them."""
    returned = min(k, ABOVE)
    share = 1 / (1 + k ** (2 / 3))
    left = {
        "noisy top-k": 0.0,
        "hybrid top-k": 1 - min(1.0, (ABOVE + 1) / k),
        "sparse vector": (1 - share) * (1 - returned / k),
        "hybrid sparse vector": (1 - share) * (1 - returned / k),
    }
    return left[method]


def plot(rows: Rows, path: Path) -> None:
    figure, (left, *values) = picture(3)
    for method, colour in COLOURS.items():
        for place, (name, marker) in enumerate(MARKERS.items()):
            own = [row for row in rows if (row["method"], row["counts"]) == (method, name)]
            k = [row["k"] for row in own]
            style = {"color": colour, "marker": marker, "markersize": 4, "fillstyle": "none"}
            left.plot(k, [r["left"] for r in own], linestyle="", **style)
            values[place].plot(
                k, [r["mean_count"] for r in own], linewidth=1, linestyle=LINES.get(method, "-"), **style
            )
            values[place].set_title(f"mean count returned, {name} (figure 8)")
        left.plot(k, [r["theory_left"] for r in own], color=colour, linewidth=1, linestyle=LINES.get(method, "-"))
    left.set(title="budget left (figure 7); lines: theory", xlabel="k", ylim=(-0.02, 0.6))
    left.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes in values:
        axes.set(xlabel="k", ylim=(0, None))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
        axes.axvline(ABOVE, color="0.85", zorder=0)
    left.axvline(ABOVE, color="0.85", zorder=0)
    methods = {method: {"color": colour, "linestyle": LINES.get(method, "-")} for method, colour in COLOURS.items()}
    legend(left, methods | markers(), loc="upper left")
    for axes in values:
        legend(axes, methods, loc="best")
    figure.suptitle(f"Hybrids, epsilon = {EPSILON}, threshold: the {ABOVE}th largest count", fontsize=11)
    save(figure, path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=1000)
    options = arguments.parse_args()
    runs = 3 if options.quick else options.runs
    folder, rows = results_folder(options), []
    for name, counts in datasets(quick=options.quick).items():
        threshold = int(np.sort(counts)[-ABOVE])
        for k in ks(quick=options.quick):
            root = SeededNoise(3).derive(name, k)
            found = [run(counts, k, threshold, root.derive(i)) for i in range(runs)]
            for method in COLOURS:
                left, mean = np.nanmean([each[method] for each in found], axis=0)
                row = {"counts": name, "method": method, "k": k, "epsilon": EPSILON, "runs": runs}
                row |= {"theory_left": round(theory(method, k), 4), "left": round(float(left), 4)}
                rows.append(row | {"mean_count": round(float(mean), 1)})
    write_csv(folder / "free_gap_hybrid.csv", rows)
    plot(rows, folder / "free_gap_hybrid.png")
    print_table("hybrids", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
