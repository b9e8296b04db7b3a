"""Pictures of what is found."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

LINES = {
    "clock": ("tab:blue", "-"),
    "target charging": ("tab:cyan", "-"),
    "monitor of the paper": ("tab:purple", "-"),
    "sparse vector, told of C": ("tab:orange", ":"),
    "sparse vector, told of B and C": ("tab:orange", "--"),
    "sparse vector": ("tab:orange", "-"),
    "histogram": ("tab:green", "-"),
}
CLOCKS = {"clock, 4 hits each": ":", "clock, 64 hits each": "--"}
Rows = Sequence[dict[str, Any]]


def line_of(method: str) -> dict[str, Any]:
    """Return colour and style of a method."""
    colour, style = next(line for name, line in LINES.items() if method.startswith(name))
    return {"color": colour, "linestyle": CLOCKS.get(method, style)}


def by_method(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """Group rows, in their order."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["method"], []).append(row)
    return groups


def plot_example(found: Rows, limits: Rows, path: Path) -> None:
    """Draw who finds which groups, and what each method can find as the number of people grows."""
    figure = Figure(figsize=(15, 5.6), layout="constrained")
    cells, lines = figure.subplots(1, 2)
    _draw_cells(cells, found)
    _draw_limits(lines, limits)
    figure.savefig(path, dpi=130)


def _draw_cells(axes: Axes, rows: Rows) -> None:
    methods = by_method(rows)
    shares = np.array([[row["share"] for row in several] for several in methods.values()])
    columns = next(iter(methods.values()))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
    for (y, x), share in np.ndenumerate(shares):
        axes.text(x, y, _percent(share), ha="center", va="center", color="white" if share > 0.7 else "black")
    axes.set_xticks(range(len(columns)), [f"{row['group']}\n{row['group_size']:,}" for row in columns])
    axes.set_yticks(range(len(methods)), list(methods))
    axes.tick_params(length=0)
    sections = itertools.groupby(range(len(columns)), key=lambda place: columns[place]["people"])
    for people, several in sections:
        places = list(several)
        axes.text(float(np.mean(places)), -0.62, f"n = {people:,} people", ha="center", va="bottom")
        if places[0]:
            axes.axvline(places[0] - 0.5, color="black", linewidth=1)
    axes.set_title("groups found, in percent", pad=26)
    axes.set_xlabel("kind of group, and how many people are in one")


def _percent(share: float) -> str:
    if share in (0, 1):
        return f"{share:.0%}"[:-1]
    return "<1" if share < 0.01 else ">99" if share > 0.99 else f"{100 * share:.0f}"


def _draw_limits(axes: Axes, rows: Rows) -> None:
    people = sorted({row["people"] for row in rows})
    first = next(iter(by_method(rows).values()))
    for kind in "ABC":
        sizes = [row[f"group_{kind}"] for row in first]
        axes.plot(people, sizes, color="0.75", linewidth=5, zorder=1)
        axes.annotate(
            f" groups {kind}",
            (people[-1], sizes[-1]),
            xytext=(4, 0),
            textcoords="offset points",
            color="0.4",
            va="center",
        )
    for method, several in by_method(rows).items():
        axes.plot(people, [row["finds"] for row in several], label=method, **line_of(method))
    axes.set(xscale="log", yscale="log", xlabel="people n", ylabel="people in a group")
    axes.set_title("the smallest group that is found (lines); the groups there are (grey)", pad=26)
    axes.legend(frameon=False, loc="upper left", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)


def plot_zipf(bins: Rows, path: Path) -> None:
    """Draw what part of the items is found, by their number of holders."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for method, several in by_method(bins).items():
        used = [row for row in several if row["items"]]
        middle = [row["holders_from"] * 2 ** (1 / 6) for row in used]
        axes.plot(middle, [row["share"] for row in used], marker=".", label=method, **line_of(method))
    axes.set(xscale="log", xlabel="people who hold the item in a step", ylabel="items found")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xticks([100, 200, 400, 800, 1600, 3200, 6400], ["100", "200", "400", "800", "1,600", "3,200", "6,400"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=130)
