"""`privstream plot predecessor`: what is near to each point that was asked for, and what was nearest in truth."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
from privstream.pipelines.command import Command
from privstream.pipelines.plot.bands import Band, draw_bands
from privstream.pipelines.plot.rows import add_plot, choose_stream, read_rows, write_picture
from privstream.pipelines.questions.predecessor.simulation import NearestTrue
from privstream.transforms.rows import NearestPoints

SIDES = ("predecessor", "successor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_plot(parser, rows="predecessor", truth="draws what was nearest, dashed")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the rows, draw, and write the picture."""

    def prepare() -> partial[None]:
        stream, rows = choose_stream(read_rows("--input", arguments.input, NearestPoints), arguments.stream)
        truth = [] if arguments.truth is None else read_rows("--truth", arguments.truth, NearestTrue)
        bands = make_bands(rows, [row for row in truth if row.stream == stream])
        text, queries = caption(rows, bool(truth)), sorted({row.query for row in rows})
        title = "Nearest points below and above" + (f", {stream}" if stream else "")
        return partial(draw_bands, bands, values="point", title=title, caption=text, levels=queries)

    write_picture(arguments.output, prepare)


def make_bands(rows: Sequence[NearestPoints], truth: Sequence[NearestTrue]) -> list[Band]:
    """Return two lines for each query, its predecessors and its successors; gaps where an answer has none."""
    true = {(row.window_end, row.query): row for row in truth}
    queries: dict[int, list[NearestPoints]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.window_end):
        queries[row.query].append(row)
    bands = []
    for query, found in queries.items():
        times = np.array([row.window_end.micros for row in found], np.int64)
        known = [true.get((row.window_end, query)) for row in found]
        for side in SIDES:
            near = _points([getattr(row, side) for row in found])
            if np.isfinite(near).any():
                right = _points([0 if row is None else getattr(row, side) for row in known]) if truth else None
                name = f"{'below' if side == SIDES[0] else 'above'} {query:,}"
                bands.append(Band(name, times, near, np.zeros(len(times)), right))
    return bands


def _points(numbers: Sequence[int]) -> np.ndarray:
    """Return points as real numbers, NaN where there is none."""
    points = np.array(numbers, np.float64)
    points[points == 0] = np.nan
    return points


def caption(rows: Sequence[NearestPoints], truth: bool) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    worst = max(row.error_bound for row in rows)
    text = (
        "Dotted: the points of the queries. Lines: the nearest points below and above, as reported. At most "
        f"{worst:,} points lie between a query and its line; where there is no line, at most as many lie on that side."
    )
    return text + (" Dashed: the nearest points in truth." if truth else "")


COMMAND = Command(
    description="Draws the nearest points below and above each query and, given the truth, the true ones.",
    add_arguments=add_arguments,
    run=run,
)
