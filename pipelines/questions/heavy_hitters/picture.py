"""`privstream plot heavy-hitters`: the timeline of heavy hitters as a picture."""

from __future__ import annotations

import argparse
from functools import partial

from privstream.mechanisms import checks
from privstream.pipelines.command import Command
from privstream.pipelines.plot.rows import add_plot, choose_stream, read_rows, write_picture
from privstream.pipelines.plot.timeline import Timeline, draw
from privstream.pipelines.plot.truth import judge, read_detection_threshold
from privstream.pipelines.simulate.event_writers import ItemHolders
from privstream.transforms.rows import HeavyHitter

MOST_ITEMS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_plot(parser, rows="heavy-hitters", truth="shows what was missed")
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help=f"items in colour, 1 to {MOST_ITEMS} (default: 10)"
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the rows, draw, and write the picture."""
    write_picture(arguments.output, lambda: partial(draw, _read(arguments), top=arguments.top))


def _read(arguments: argparse.Namespace) -> Timeline:
    """Read what is to be drawn."""
    if checks.integer("top", arguments.top, minimum=1) > MOST_ITEMS:
        raise ValueError(f"top must be <= {MOST_ITEMS}, got {arguments.top}")
    stream, rows = choose_stream(read_rows("--input", arguments.input, HeavyHitter), arguments.stream)
    truth = None if arguments.truth is None else read_rows("--truth", arguments.truth, ItemHolders)
    truth = None if truth is None else [row for row in truth if row.stream == stream]
    threshold = read_detection_threshold(arguments.input)
    verdict = None if truth is None or threshold is None else judge(rows, truth, threshold)
    return Timeline(stream=stream, rows=rows, truth=truth or [], detection_threshold=threshold, verdict=verdict)


COMMAND = Command(
    description="Draws the heavy hitters of each window with error bars of two standard deviations of their noise and, "
    "given the truth, what was found and what was missed.",
    add_arguments=add_arguments,
    run=run,
)
