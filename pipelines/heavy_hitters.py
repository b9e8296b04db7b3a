"""`privstream heavy-hitters`: from an event file to the items that many people hold, window by window."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import apache_beam as beam
from privstream.pipelines import launch
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.options import add_events, add_heavy_hitters, add_privacy, fields
from privstream.pipelines.readers import ReadEvents
from privstream.pipelines.whole_files import check_destination, write_json
from privstream.pipelines.writers import HEAVY_HITTER_ORDER, TERMINAL, WriteRows, file_or_terminal
from privstream.transforms import DeadLetter, Domain, HeavyHitter, ShiftingHeavyHitters

LATER = 1000
"""The window for which a threshold that rises is told, beside the first."""

PLACES = ("command", "traceback", "input", "output", "dead_letter", "noise_key_file", "noise_key_variable")
"""Options that say where things are, not what is promised."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_events(parser)
    add_privacy(parser)
    add_heavy_hitters(parser)


def run(arguments: argparse.Namespace, beam_arguments: list[str]) -> None:
    """Check everything that can be checked, run the pipeline, and write what it promises beside its output."""
    options = launch.parse_beam_options(beam_arguments)
    try:
        read = ReadEvents(arguments.input, fields(arguments), arguments.input_format)
        hitters = transform(arguments, streams=bool(read.fields.stream))
        guarantee_file = f"{arguments.output}.guarantee.json"
        promised = promise(hitters, arguments)
        if arguments.output != TERMINAL:
            check_destination(guarantee_file)
        check_apart(arguments, [file.path for file in read.files])
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(str(error)) from error
    with file_or_terminal(arguments.output, HeavyHitter, title="heavy hitters") as path:
        try:
            write = WriteRows(path, HeavyHitter, order=HEAVY_HITTER_ORDER)
            letters = arguments.dead_letter and WriteRows(arguments.dead_letter, DeadLetter, option="--dead_letter")
        except (ValueError, TypeError, OSError) as error:
            raise UsageError(str(error)) from error

        def build(pipeline: beam.Pipeline) -> None:
            events = pipeline | "Read" >> read
            published = events.events | "ShiftingHeavyHitters" >> hitters.with_dead_letters()
            published.rows | "Write" >> write
            if letters:
                dead = (events.dead_letters, published.dead_letters) | "AllDeadLetters" >> beam.Flatten()
                dead | "WriteDeadLetters" >> letters

        if arguments.noise_key_file is None and arguments.noise_key_variable is None:
            launch.say("noise key: a new random one, for this run only; with --noise_key_file it could be repeated")
        counters = launch.run(options, build)
    if arguments.output != TERMINAL:
        write_json(guarantee_file, promised)
    _report(arguments, hitters, counters)


def transform(arguments: argparse.Namespace, *, streams: bool) -> ShiftingHeavyHitters:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    if arguments.streams_per_person is not None and not streams:
        raise ValueError("streams_per_person must not be given when the events have no stream")
    return ShiftingHeavyHitters(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        max_hits=arguments.max_hits,
        window=arguments.window,
        period=arguments.period,
        start=arguments.start,
        end=arguments.end,
        allowed_lateness=arguments.allowed_lateness,
        horizon=arguments.horizon,
        participation_cap=arguments.participation_cap,
        items_per_step=arguments.items_per_step,
        selection=arguments.selection,
        domain=None if arguments.domain is None else Domain.from_file(arguments.domain),
        streams=None if arguments.streams is None else tuple(arguments.streams.split(",")),
        streams_per_person=(arguments.streams_per_person or 1) if streams else None,
        calibration=arguments.calibration,
        neighbouring=arguments.neighbouring,
        beta=arguments.beta,
        count_share=arguments.count_share,
        shards=arguments.shards,
        noise=launch.noise_key(arguments.noise_key_file, arguments.noise_key_variable, arguments.run_id),
    )


def check_apart(arguments: argparse.Namespace, inputs: list[str]) -> None:
    """Refuse to write over a file that this run reads or writes.

    Raises:
        ValueError: naming the option and the path.
    """
    taken = {os.path.realpath(path): "--input" for path in inputs}
    for option in ("noise_key_file", "domain"):
        if getattr(arguments, option) is not None:
            taken[os.path.realpath(getattr(arguments, option))] = f"--{option}"
    written = {"--dead_letter": arguments.dead_letter}
    if arguments.output != TERMINAL:
        written = {
            "--output": arguments.output,
            "the guarantee": f"{arguments.output}.guarantee.json",
            **written,
        }
    for option, path in written.items():
        if not path:
            continue
        other = taken.setdefault(os.path.realpath(path), option)
        if other != option:
            raise ValueError(f"{option} must not be written over {other}, got {path}")


def promise(hitters: ShiftingHeavyHitters, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return guarantee, accuracy and the public parameters that they hold for, for machines and people."""
    return {
        "parameters": {name: value for name, value in vars(arguments).items() if name not in PLACES},
        "guarantee": hitters.guarantee.to_dict() | {"paragraph": hitters.guarantee.paragraph()},
        "accuracy": {
            "detection_threshold": hitters.detection_threshold,
            "failure_probability": hitters.monitor.beta,
            "tests": hitters.tests,
            "count_stddev": hitters.monitor.count_stddev,
            "sentence": _accuracy(hitters),
        },
    }


def _accuracy(hitters: ShiftingHeavyHitters) -> str:
    """Say what is found, and on what that is conditional."""
    first, later = hitters.detection_threshold, hitters.detection_threshold_at(LATER)
    rising = f"; the number is for the first window and rises to {later:,} in window {LATER:,}" if later > first else ""
    stream = "" if hitters.streams_per_person is None else " in any one stream"
    return (
        f"With probability {1 - hitters.monitor.beta:g}, every item that {first:,} people hold in a window, all of "
        f"them within their limits, is found, in {hitters.tests:,} tests of one item in one window{stream}{rising}."
    )


def _report(arguments: argparse.Namespace, hitters: ShiftingHeavyHitters, counters: dict[str, int]) -> None:
    """Tell what was read, what was published, and what that promises."""
    letters = counters.get("events_malformed", 0) + counters.get("events_late", 0)
    lines = [
        f"{counters.get('events', 0):,} events, {counters.get('hits_published', 0):,} heavy hitters published",
        f"{letters:,} records could not be used"
        + (f", see {arguments.dead_letter}" if arguments.dead_letter else "; --dead_letter PATH keeps them"),
    ]
    beyond = {
        "events_outside_run": "events outside of --start, --end and --horizon",
        "events_of_other_streams": "events of streams that are not in --streams",
        "events_outside_domain": "events of items that are not in --domain",
        "holdings_over_limit": "times a person was left out for having taken part often enough",
    }
    lines += [f"{counters[name]:,} {what}" for name, what in beyond.items() if counters.get(name)]
    lines += [hitters.guarantee.paragraph(), _accuracy(hitters)]
    if arguments.output != TERMINAL:
        lines.append(f"rows: {arguments.output}, guarantee: {arguments.output}.guarantee.json")
    print("\n".join(lines if letters else [lines[0], *lines[2:]]), file=sys.stderr)


COMMAND = Command(
    description="Reports the items that many people hold in each window. The guarantee holds for each person over the "
    "whole run. Any option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=run,
    takes_beam_options=True,
)
