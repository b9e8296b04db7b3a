"""What the adaptive sparse vector saves: figures 4, 5 and 6 of Ding et al. (2022), Free gap estimates.

Usage: python benchmarks/free_gap_adaptive.py [--quick] [--runs 1000]

Counts are asked for in a fixed order, with a threshold from the top 2k to top 8k counts, by the sparse vector technique
that answers k times and by the adaptive one with the same budget, both with geometric noise.
"""

from pathlib import Path
from typing import Any

import numpy as np
from _free_gap import EPSILON, MARKERS, Rows, datasets, ks, legend, markers, picture, random_threshold, save
from _report import parser, print_table, results_folder, write_csv
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from privstream.mechanisms.free_gap.adaptive_sparse_vector import AdaptiveSparseVector, GapAnswers
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.sparse_vector import SparseVectorWithGap

STANDARD, ADAPTIVE = "sparse vector", "adaptive"
COLOURS = {STANDARD: "0.45", ADAPTIVE: "tab:blue"}


def quality(counts: np.ndarray, answers: GapAnswers, threshold: int) -> tuple[float, float]:
    """Return precision and F-measure of the answers."""
    returned = counts[: answers.answered][answers.hits]
    right, wanted = int((returned >= threshold).sum()), int((counts >= threshold).sum())
    return right / max(1, len(returned)), 2 * right / (len(returned) + wanted)


def run(counts: np.ndarray, k: int, threshold: int, noise: SeededNoise) -> dict[str, float]:
    """Return what one run of both gives."""
    share = 1 / (1 + k ** (2 / 3))
    common: dict[str, Any] = {"epsilon": EPSILON, "threshold": threshold, "integer": True, "monotone": True}
    standard = SparseVectorWithGap(**common, max_hits=k, threshold_share=share)
    adaptive = AdaptiveSparseVector(**common, min_hits=k, branches=2, threshold_share=share)
    _, usual = standard.step(standard.initial_state(), counts, noise)
    _, more = adaptive.step(adaptive.initial_state(), counts, noise)
    spent = adaptive.threshold_epsilon + adaptive.costs(more)[:k].sum()
    found: dict[str, float] = {
        "answers_standard": len(usual.gaps),
        "answers_adaptive": len(more.gaps),
        "answers_at_half_price": int((more.branches == 1).sum()),
        "left_after_k": 1 - spent / EPSILON if len(more.gaps) >= k else np.nan,
    }
    for name, answers in (("standard", usual), ("adaptive", more)):
        found[f"precision_{name}"], found[f"f_measure_{name}"] = quality(counts, answers, threshold)
    return found


def plot(rows: Rows, path: Path) -> None:
    figure, (answers, quality_axes, left) = picture(3)
    blue, grey, cyan = COLOURS[ADAPTIVE], COLOURS[STANDARD], "tab:cyan"
    for name, marker in MARKERS.items():
        own = [row for row in rows if row["counts"] == name]
        k = [row["k"] for row in own]
        style = {"marker": marker, "markersize": 4, "linewidth": 1, "fillstyle": "none"}

        def line(axes: Axes, column: str, colour: str, dots: str = "-", own=own, k=k, style=style) -> None:
            axes.plot(k, [row[column] for row in own], color=colour, linestyle=dots, **style)

        line(answers, "answers_adaptive", blue)
        line(answers, "answers_at_half_price", cyan, ":")
        line(left, "left_after_k", blue)
        for kind, colour in (("standard", grey), ("adaptive", blue)):
            line(quality_axes, f"precision_{kind}", colour, ":")
            line(quality_axes, f"f_measure_{kind}", colour)
    k = sorted({row["k"] for row in rows})
    answers.plot(k, k, color=grey)
    answers.plot(k, [2 * each - 1 for each in k], color="0.75", linestyle="--", zorder=1)
    left.plot(k, [row["theory_left"] for row in rows[: len(k)]], color="0.6", linestyle="--")
    left.axhline(0, color=grey)
    answers.set(title="answers (figure 4)", xlabel="k", ylabel="answers", ylim=(0, None))
    quality_axes.set(title="are they right? (figure 5)", xlabel="k", ylim=(0, 1.03))
    left.set(title="budget left after k answers (figure 6)", xlabel="k", ylim=(-0.02, 0.55))
    left.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    both = {ADAPTIVE: {"color": blue}, STANDARD: {"color": grey}}
    theory = {"theory: at most": {"color": "0.7", "linestyle": "--"}}
    legend(answers, both | {"of these at half price": {"color": cyan, "linestyle": ":"}} | theory | markers())
    kinds = {"precision": {"linestyle": ":"}, "F-measure": {}}
    legend(quality_axes, both | kinds | markers(), loc="lower right", ncols=2)
    legend(left, both | theory | markers(), loc="center right")
    figure.suptitle(f"Adaptive sparse vector with gaps, epsilon = {EPSILON}", fontsize=11)
    save(figure, path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=1000)
    options = arguments.parse_args()
    runs = 3 if options.quick else options.runs
    folder, rows = results_folder(options), []
    for name, counts in datasets(quick=options.quick).items():
        for k in ks(quick=options.quick):
            rng, root = np.random.default_rng(k), SeededNoise(2).derive(name, k)
            found = [run(counts, k, random_threshold(counts, k, rng), root.derive(i)) for i in range(runs)]
            row: dict[str, Any] = {"counts": name, "k": k, "epsilon": EPSILON, "runs": runs}
            row |= {key: round(float(np.nanmean([each[key] for each in found])), 4) for key in found[0]}
            row["theory_left"] = round((1 - 1 / (1 + k ** (2 / 3))) / 2, 4)
            rows.append(row)
    write_csv(folder / "free_gap_adaptive.csv", rows)
    plot(rows, folder / "free_gap_adaptive.png")
    print_table("adaptive sparse vector", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
