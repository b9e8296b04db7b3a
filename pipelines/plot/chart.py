"""What all pictures of rows over time have in common: size, colours, the time axis, title and caption."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any, BinaryIO

import matplotlib
from matplotlib import dates, font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from privstream.pipelines.sinks.row_files import iso_8601

INK, GREY, FAINT, ALARM = "#222222", "#9a9a9a", "#dddddd", "#b3261e"
COLOURS = (
    "#1f6fb4",
    "#d1670b",
    "#2b8a3e",
    "#8e4ec6",
    "#a8336a",
    "#0b8a8f",
    "#8a6d0b",
    "#5c5fc8",
    "#b4483a",
    "#4d7c0f",
    "#6b4f3a",
    "#3f6b8c",
)
SETTINGS: Any = {
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.parse_math": False,
    "svg.hashsalt": "privstream",
}
FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari", "Arial Unicode MS")
INCHES = (11.0, 6.0)
DOTS_PER_INCH = 150
LONGEST_NAME = 28
KEYS_ABREAST = 6
LONGEST_LINE = 170
TICKS = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
EVEN_TICKS = ["", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M"]
DAY = 86_400_000_000.0
"""Microseconds; the unit of the time axis is a day since 1970."""


@contextmanager
def chart(stream: BinaryIO, format: str) -> Iterator[tuple[Figure, Axes]]:
    """Give a figure with one pair of axes to draw on, and write it as png or svg."""
    installed = set(font_manager.get_font_names())
    fonts = {"font.family": [font for font in FONTS if font in installed]}
    with matplotlib.rc_context(SETTINGS | fonts), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fonts that lack a character
        figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)
        yield figure, figure.add_subplot()
        metadata = {"Date": None} if format == "svg" else None
        figure.savefig(stream, format=format, metadata=metadata)


def freeze_layout(figure: Figure) -> None:
    """Fix where the axes are, so that labels do not move them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def style_axes(
    figure: Figure,
    axes: Axes,
    *,
    span: tuple[int, int] | None,
    values: str,
    title: str,
    caption: str,
) -> None:
    """Draw the axes, title and caption.

    Args:
        figure, axes: where.
        span: first and last moment in microseconds since 1970, or None if nothing is shown.
        values: what the vertical axis counts.
        title: above the picture, on the left.
        caption: below the picture; says what is seen.
    """
    years = ""
    axes.set_xticks([])
    if span is not None:
        axes.set_xlim(span[0] / DAY, span[1] / DAY)
        years = " - ".join(sorted({iso_8601(moment)[:4] for moment in span}))
        locator = dates.AutoDateLocator(tz=UTC, minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(
            dates.ConciseDateFormatter(  # type: ignore[no-untyped-call]
                locator, tz=UTC, formats=TICKS, zero_formats=EVEN_TICKS, show_offset=False
            )
        )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(_whole_number))
    axes.set_ylabel(values)
    axes.set_xlabel(f"{years} UTC".strip())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=13, color=INK, pad=12)
    lines = "\n".join(textwrap.wrap(caption, LONGEST_LINE))
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=8.5, color=INK)


def key_above(axes: Axes, marks: Sequence[Line2D], names: Sequence[str]) -> None:
    """Say what marks mean, in the line of the title on its right."""
    if marks:
        axes.legend(
            marks,
            names,
            frameon=False,
            ncols=min(len(marks), KEYS_ABREAST),
            fontsize=9,
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.2,
        )


def short(text: str) -> str:
    """Return a name that fits into a picture."""
    printable = "".join(part if part.isprintable() else " " for part in text)
    return printable if len(printable) <= LONGEST_NAME else f"{printable[: LONGEST_NAME - 1]}…"


def _whole_number(value: float, _: int | None) -> str:
    """Write a tick that is a whole number."""
    return f"{value:,.0f}"
