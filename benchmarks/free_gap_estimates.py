"""How much gaps improve measurements: figures 2 and 3 of Ding et al. (2022), Free gap estimates.

Usage: python benchmarks/free_gap_estimates.py [--quick] [--runs 1000]

Half of the budget selects k counts, with their gaps; the other half measures them. Without gaps the measurement is the
estimate; with gaps it is improved, by BLUE for top-k, by inverse variance for the sparse vector. Thresholds of the
latter are drawn from the top 2k to top 8k counts. Curves are the theory, for noise that does not know what it selects.
"""

import itertools
from typing import Any

import numpy as np
from _free_gap import EPSILON, LAWS, MARKERS, Rows, datasets, ks, measure, picture, random_threshold, save
from _report import parser, print_table, results_folder, write_csv
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from privstream.mechanisms.free_gap.noisy_top_k import NoisyTopK
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.sparse_vector import SparseVectorWithGap
from privstream.mechanisms.postprocess import blue_from_gaps, combine_by_variance

FIXED_K = 10
TOP_K, SPARSE = "top-k", "sparse vector"
Errors = tuple[np.ndarray, np.ndarray]


def top_k(counts: np.ndarray, k: int, epsilon: float, law: str, noise: SeededNoise) -> Errors:
    """Return the squared errors of one run, without and with gaps."""
    _, noise_law, integer = LAWS[law]
    mechanism = NoisyTopK(epsilon=epsilon / 2, top=k, integer=integer, monotone=True, noise_law=noise_law)
    found = mechanism.select(counts, noise.derive("select"))
    truth = counts[found.indices]
    measures, of = measure(truth, epsilon / 2, integer=integer, noise=noise.derive("measure"))
    improved = blue_from_gaps(
        measures, found.gaps[:-1], measure_variance=of.variance, noise_variance=mechanism.noise_variance
    )
    return np.square(measures - truth), np.square(improved.values - truth)


def sparse_vector(counts: np.ndarray, k: int, epsilon: float, law: str, noise: SeededNoise, threshold: int) -> Errors:
    """Return the squared errors of one run, without and with gaps."""
    _, noise_law, integer = LAWS[law]
    mechanism = SparseVectorWithGap(
        epsilon=epsilon / 2, max_hits=k, threshold=threshold, integer=integer, monotone=True, noise_law=noise_law
    )
    _, answers = mechanism.step(mechanism.initial_state(), counts, noise.derive("select"))
    truth = counts[: answers.answered][answers.hits]
    measures, of = measure(truth, epsilon / 2, integer=integer, noise=noise.derive("measure"))
    improved = combine_by_variance(measures, of.variance, threshold + answers.gaps, mechanism.gap_variance)
    return np.square(measures - truth), np.square(improved.values - truth)


def theory(mechanism: str, k: int, law: str) -> float:
    """Return the cut of the variance, which does not depend on epsilon for continuous noise, and hardly otherwise."""
    ratio = 0.5 if LAWS[law][1] == "exponential" else 1.0  # of the variance of a noise to that of Laplace noise
    if mechanism == TOP_K:
        return 1 - (1 + ratio * k) / (k * (1 + ratio))
    return 1 / (1 + ratio * (1 + k ** (2 / 3)) ** 3 / k**2)


def measured(counts: np.ndarray, mechanism: str, k: int, epsilon: float, law: str, runs: int) -> float:
    """Return the cut of the mean squared error that was found."""
    rng, root = np.random.default_rng(k), SeededNoise(1).derive(mechanism, k, law, f"{epsilon}")
    found = []
    for run in range(runs):
        noise = root.derive(run)
        if mechanism == TOP_K:
            found.append(top_k(counts, k, epsilon, law, noise))
        else:
            found.append(sparse_vector(counts, k, epsilon, law, noise, random_threshold(counts, k, rng)))
    without, with_gaps = (np.concatenate(errors).sum() for errors in zip(*found, strict=True))
    return float(1 - with_gaps / without)


def plot(rows: Rows, columns: str, path: Any) -> None:
    figure, panels = picture(2)
    for axes, mechanism in zip(panels, (SPARSE, TOP_K), strict=True):
        for law, (colour, _, _) in LAWS.items():
            own = [row for row in rows if (row["mechanism"], row["law"]) == (mechanism, law)]
            curve = sorted({(row[columns], row["theory"]) for row in own})
            style = "--" if law == "geometric" else "-"
            axes.plot(*zip(*curve, strict=True), color=colour, linestyle=style, linewidth=1.3)
            for name, marker in MARKERS.items():
                points = [(row[columns], row["measured"]) for row in own if row["counts"] == name]
                axes.plot(*zip(*points, strict=True), marker, color=colour, markersize=4, fillstyle="none")
        axes.set(ylim=(0, 0.75), title=mechanism, xlabel="answers k" if columns == "k" else "privacy budget epsilon")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panels[0].set_ylabel("cut of the mean squared error")
    entries = [Line2D([], [], color=colour, label=law) for law, (colour, _, _) in LAWS.items()]
    entries += [
        Line2D([], [], color="0.3", linestyle="", marker=marker, fillstyle="none", label=f"measured, {name}")
        for name, marker in MARKERS.items()
    ]
    entries[2].set_linestyle("--")
    panels[1].legend(handles=entries, frameon=False, fontsize="small", loc="lower right", title="theory: lines")
    fixed = f"epsilon = {EPSILON}" if columns == "k" else f"k = {FIXED_K}"
    figure.suptitle(f"What free gaps add to measurements of the selected counts ({fixed})", fontsize=11)
    save(figure, path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=1000)
    options = arguments.parse_args()
    runs = 3 if options.quick else options.runs
    epsilons = [0.3, 0.9] if options.quick else [0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5]
    folder = results_folder(options)
    figures: dict[str, Rows] = {"k": [], "epsilon": []}
    chosen = [("k", k, EPSILON) for k in ks(quick=options.quick)] + [("epsilon", FIXED_K, e) for e in epsilons]
    for name, counts in datasets(quick=options.quick).items():
        for (figure, k, epsilon), mechanism, law in itertools.product(chosen, (SPARSE, TOP_K), LAWS):
            row = {"counts": name, "mechanism": mechanism, "law": law, "k": k, "epsilon": epsilon, "runs": runs}
            row["theory"] = round(theory(mechanism, k, law), 4)
            row["measured"] = round(measured(counts, mechanism, k, epsilon, law, runs), 4)
            figures[figure].append(row)
    for columns, rows in figures.items():
        write_csv(folder / f"free_gap_estimates_by_{columns}.csv", rows)
        plot(rows, columns, folder / f"free_gap_estimates_by_{columns}.png")
        last = max(row[columns] for row in rows)
        print_table(f"cut of the mean squared error, {columns} = {last}", [r for r in rows if r[columns] == last])
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
