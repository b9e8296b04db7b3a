"""Is the p-value of a gap one? Figure 9 of Ding et al. (2022), Free gap estimates.

Usage: python benchmarks/free_gap_p_values.py [--quick] [--runs 10000]

The exponential mechanism with gap chooses among 100 counts. Where it does not choose the largest, a p-value below alpha
is an error of type I, whose share among these runs must stay below alpha. Budgets are small: otherwise it does not err.
"""

from pathlib import Path

import numpy as np
from _free_gap import MARKERS, Rows, datasets, picture, save
from _report import parser, print_table, results_folder, write_csv
from matplotlib.ticker import PercentFormatter
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.papers.selection import ExponentialMechanismWithGap
from privstream.mechanisms.postprocess import gap_p_value
from scipy import stats

CANDIDATES = 100
ALPHAS = {0.05: "tab:blue", 0.01: "tab:orange"}
UNITS = (0.3, 1, 2, 3, 5, 8, 12)  # epsilon times the largest count


def plot(rows: Rows, path: Path) -> None:
    figure, (errors, wrong) = picture(2)
    for name, marker in MARKERS.items():
        for alpha, colour in ALPHAS.items():
            own = [row for row in rows if row["counts"] == name and row["alpha"] == alpha]
            x, y = [row["epsilon_times_largest"] for row in own], [row["type_1"] for row in own]
            spread = [[r["type_1"] - r["low"] for r in own], [r["high"] - r["type_1"] for r in own]]
            errors.errorbar(
                x, y, spread, fmt=marker, color=colour, markersize=4, linewidth=0.8, fillstyle="none",
                label=f"measured, alpha = {alpha:g}, {name}",
            )  # fmt: skip
        wrong.plot(x, [row["not_largest"] for row in own], marker=marker, color="0.4", label=name, fillstyle="none")
    for alpha, colour in ALPHAS.items():
        errors.axhline(alpha, color=colour, linewidth=1.2, label=f"theory: at most {alpha:g}")
    errors.set(title="type-I errors of p-values (figure 9)", xlabel="epsilon times largest count")
    wrong.set(title="how often another is larger", xlabel="epsilon times largest count", ylim=(0, 1.02))
    for axes in (errors, wrong):
        axes.set_xscale("log")
        axes.set_xticks([0.3, 1, 3, 10], ["0.3", "1", "3", "10"])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend(frameon=False, fontsize="x-small")
    errors.set_ylim(0, 0.085)
    save(figure, path)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=10_000)
    options = arguments.parse_args()
    runs = 30 if options.quick else options.runs
    folder, rows = results_folder(options), []
    for name, counts in datasets(quick=options.quick).items():
        utilities = np.random.default_rng(4).choice(counts, CANDIDATES, replace=False).astype(float)
        for units in UNITS[:: 3 if options.quick else 1]:
            mechanism = ExponentialMechanismWithGap(epsilon=units / float(utilities.max()))
            root = SeededNoise(4).derive(name, f"{units}")
            found = [mechanism.select(utilities, root.derive(i)) for i in range(runs)]
            p_values = gap_p_value([each.gap for each in found])
            false = p_values[[utilities[each.candidate] < utilities.max() for each in found]]
            for alpha in ALPHAS:
                errors = int((false < alpha).sum())
                low, high = stats.binomtest(errors, max(1, len(false))).proportion_ci(0.95)
                row = {"counts": name, "alpha": alpha, "epsilon_times_largest": units, "runs": runs}
                row |= {"not_largest": round(len(false) / runs, 4), "type_1": round(errors / max(1, len(false)), 5)}
                rows.append(row | {"low": round(float(low), 5), "high": round(float(high), 5)})
    write_csv(folder / "free_gap_p_values.csv", rows)
    plot(rows, folder / "free_gap_p_values.png")
    print_table("p-values of gaps", rows)
    print(f"results: {folder}")


if __name__ == "__main__":
    main()
