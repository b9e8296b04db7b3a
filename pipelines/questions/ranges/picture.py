"""`privstream plot ranges`: how many points lie in each range, as lines with error bands, and the truth beside them."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np
from privstream.pipelines.command import Command
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.rows import add_plot, choose_stream, read_rows, write_picture
from privstream.pipelines.questions.ranges.simulation import PointsInRange
from privstream.transforms.rows import RangeCount


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_plot(parser, rows="ranges", truth="draws the true numbers, dashed")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the rows, draw, and write the picture."""

    def prepare() -> partial[None]:
        stream, rows = choose_stream(read_rows("--input", arguments.input, RangeCount), arguments.stream)
        truth = [] if arguments.truth is None else read_rows("--truth", arguments.truth, PointsInRange)
        bands = make_bands(rows, [row for row in truth if row.stream == stream])
        title = "Points in ranges" + (f", {stream}" if stream else "")
        return partial(draw_bands, bands, values="points", title=title, caption=caption(bands))

    write_picture(arguments.output, prepare)


def make_bands(rows: Sequence[RangeCount], truth: Sequence[PointsInRange]) -> list[Band]:
    """Return a line for each range; without an error bound there is no band."""
    true = {(row.window_end, row.low, row.high): float(row.points) for row in truth}
    ranges: dict[tuple[int, int], list[RangeCount]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.window_end):
        ranges[row.low, row.high].append(row)
    bands = []
    for (low, high), found in ranges.items():
        bounds = np.array([row.error_bound for row in found], np.float64)
        bounds[bounds < 0] = np.nan
        bands.append(
            Band(
                f"{low:,} to {high:,}",
                np.array([row.window_end.micros for row in found], np.int64),
                np.array([row.estimate for row in found], np.float64),
                bounds,
                np.array([true.get((row.window_end, low, high), np.nan) for row in found]) if truth else None,
            )
        )
    return bands


def caption(bands: Sequence[Band]) -> str:
    """Say what is seen."""
    if not bands:
        return "There are no rows."
    text = f"{len(bands):,} ranges.{tell_bounds(bands)}"
    errors = np.concatenate([np.abs(band.estimates - band.truth) for band in bands if band.truth is not None] or [[]])
    if not np.isfinite(errors).any():
        return text
    return f"{text} Dashed: the truth. The largest error is {np.nanmax(errors):,.0f}."


COMMAND = Command(
    description="Draws how many points lie in each range, with a band for the error and, given the truth, the true "
    "numbers.",
    add_arguments=add_arguments,
    run=run,
)
