"""Puts names beside points of a picture so that they do not overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

DISTANCES = (5, 16, 30, 46, 64, 84, 108, 136)
MARGIN = 1.5
LINE_FROM = 12
MARK = 4.0
BACKGROUND = {"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}

Side = Literal["left", "center", "right"]


class Label(NamedTuple):
    """A name, the points at which it may stand (in data coordinates, the best first), and its colour."""

    text: str
    points: Sequence[tuple[float, float]]
    colour: str


def place(axes: Axes, labels: Sequence[Label], points: Sequence[tuple[float, float]] = ()) -> None:
    """Write each label near one of its points, with a thin line to those that had to move away.

    Labels never overlap. They keep off `points` too, if they can. A label for which there is no room is left out.
    """
    canvas = axes.get_window_extent()
    taken: list[Bbox] = []
    marks = [_around(x, y) for x, y in axes.transData.transform(np.array(points).reshape(-1, 2))]
    for label in labels:
        note = axes.annotate(
            label.text,
            label.points[0],
            xytext=(0, 0),
            textcoords="offset points",
            color=label.colour,
            fontsize=8.5,
            bbox=BACKGROUND,
            zorder=6,
        )
        for obstacles in (taken + marks, taken):
            if (offset := _find_place(note, label, canvas, obstacles)) is not None:
                break
        else:
            note.remove()
            continue
        taken.append(note.get_window_extent().padded(MARGIN))
        if max(map(abs, offset)) > LINE_FROM:
            axes.annotate(
                "",
                note.xy,
                xytext=offset,
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": label.colour, "linewidth": 0.5, "alpha": 0.6},
                zorder=5,
            )


def _find_place(note: Annotation, label: Label, canvas: Bbox, obstacles: Sequence[Bbox]) -> tuple[float, float] | None:
    """Move a note to the first place on the canvas where no obstacle is; return its offset, or None."""
    for x, y, side, point in _candidates(label):
        note.xy = point
        note.set_horizontalalignment(side)
        note.set_verticalalignment("bottom" if y > 0 else "center" if y == 0 else "top")
        note.set_position((x, y))
        box = note.get_window_extent().padded(MARGIN)
        inside = canvas.x0 <= box.x0 and box.x1 <= canvas.x1 and canvas.y0 <= box.y0 and box.y1 <= canvas.y1
        if inside and not any(box.overlaps(other) for other in obstacles):
            return x, y
    return None


def _around(x: float, y: float) -> Bbox:
    """Return a small box around a point."""
    return Bbox.from_extents(x - MARK, y - MARK, x + MARK, y + MARK)


def _candidates(label: Label) -> Iterator[tuple[float, float, Side, tuple[float, float]]]:
    """Return offsets in points, the side on which the text is placed, and the point; the best first."""
    for far in DISTANCES:
        for point in label.points:
            yield 0, far, "center", point
            yield far, far / 2, "left", point
            yield -far, far / 2, "right", point
            yield far, 0, "left", point
            yield -far, 0, "right", point
            yield far, -far / 2, "left", point
            yield -far, -far / 2, "right", point
