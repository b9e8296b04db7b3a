"""What the benchmarks of the free gap mechanisms share: counts to ask for, budgets, and how pictures look."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _quest import item_counts
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from privstream.mechanisms.noise.continuous import Laplace
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.gaps import GapLaw
from privstream.mechanisms.noise.sources import NoiseSource

EPSILON = 0.7
QUEST, ZIPF = "T40I10D100K", "Zipf"
MARKERS = {QUEST: "o", ZIPF: "^"}
# law -> colour, noise_law, integer
LAWS = {
    "Laplace": ("tab:blue", "laplace", False),
    "exponential": ("tab:orange", "exponential", False),
    "geometric": ("tab:green", "exponential", True),
}
Rows = list[dict[str, Any]]


def datasets(*, quick: bool) -> dict[str, np.ndarray]:
    """Return counts of items, in an order that says nothing about them."""
    zipf = 300_000 // np.arange(1, 1_001)
    return {QUEST: item_counts(1, 500 if quick else 100_000), ZIPF: np.random.default_rng(1).permutation(zipf)}


def ks(*, quick: bool) -> list[int]:
    """Return the numbers of answers to try."""
    return [2, 8] if quick else [2, 4, 6, 8, 10, 12, 16, 20, 24]


def measure(values: np.ndarray, epsilon: float, *, integer: bool, noise: NoiseSource) -> tuple[np.ndarray, GapLaw]:
    """Measure selected counts with Laplace or discrete Laplace noise; return this and its law."""
    law = (DiscreteLaplace if integer else Laplace)(len(values) / epsilon)
    return values + law.draw(noise, len(values)), law


def random_threshold(counts: np.ndarray, k: int, rng: np.random.Generator) -> int:
    """Return a count from the 2k-th to the 8k-th largest."""
    return int(np.sort(counts)[-int(rng.integers(2 * k, 8 * k + 1))])


def picture(columns: int, height: float = 4.2) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with panels side by side."""
    figure = Figure(figsize=(4.6 * columns + 0.6, height), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, columns))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9", linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, panels


def legend(axes: Axes, entries: dict[str, dict[str, Any]], **options: Any) -> None:
    """Explain colours, lines and markers one by one, not every combination of them."""
    handles = [
        Line2D([], [], **{"color": "0.3", "linewidth": 1.3, **style}, label=name) for name, style in entries.items()
    ]
    axes.legend(handles=handles, frameon=False, fontsize="x-small", **options)


def markers() -> dict[str, dict[str, Any]]:
    """Return legend entries that tell the data sets apart."""
    return {
        name: {"linestyle": "", "marker": marker, "markersize": 4, "fillstyle": "none"}
        for name, marker in MARKERS.items()
    }


def save(figure: Figure, path: Path) -> None:
    """Write a picture."""
    figure.savefig(path, dpi=130)
