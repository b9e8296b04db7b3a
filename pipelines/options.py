"""Options of the pipelines, beside those that Beam knows."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from privstream.pipelines.fields import FieldMapping

UNBOUNDED = "unbounded"


def add_events(parser: argparse.ArgumentParser) -> None:
    """Add: where events come from, where rows go, and which windows are looked at."""
    files = parser.add_argument_group("input and output")
    files.add_argument("--input", required=True, help="events: a path or glob, .avro .parquet .jsonl .csv")
    files.add_argument("--output", required=True, help="rows: .avro .parquet .jsonl, or - for a table")
    files.add_argument("--dead_letter", help="records that could not be used, as JSON lines; guard it like the input")
    files.add_argument("--input_format", choices=("avro", "parquet", "jsonl", "csv"), help="default: by ending")
    files.add_argument("--user_field", default="user", help="field with the person (default: user)")
    files.add_argument("--item_field", default="item", help="field with the item (default: item)")
    files.add_argument("--time_field", default="time", help="field with the time (default: time)")
    files.add_argument("--stream_field", help="field with the stream (default: stream, where present; '' for none)")
    files.add_argument("--time_unit", choices=("s", "ms", "us", "ns"), help="unit of times that are plain numbers")
    windows = parser.add_argument_group("windows")
    windows.add_argument("--window", type=float, required=True, metavar="SECONDS", help="length of a window")
    windows.add_argument("--period", type=float, metavar="SECONDS", help="between window starts (default: window)")
    windows.add_argument("--start", type=_time, metavar="TIME", help="start of the first window, ISO 8601 or epoch s")
    windows.add_argument("--end", type=_time, metavar="TIME", help="no window ends after this")
    windows.add_argument(
        "--allowed_lateness", type=float, default=0, metavar="SECONDS", help="a window stays open so long (default: 0)"
    )


def add_privacy(parser: argparse.ArgumentParser) -> None:
    """Add: budget and key."""
    add_budget(parser)
    key = parser.add_argument_group("noise key (a secret; the same key gives the same rows for the same events)")
    key.add_argument("--noise_key_file", metavar="PATH", help="file with the key, readable by every worker")
    key.add_argument("--noise_key_variable", metavar="NAME", help="environment variable with the key")
    key.add_argument("--run_id", default="", help="public name of the run; a run on other data needs another")


def add_heavy_hitters(parser: argparse.ArgumentParser) -> None:
    """Add: what `heavy-hitters` alone takes."""
    limits = parser.add_argument_group("limits for each person")
    limits.add_argument("--max_hits", type=int, required=True, help="hits that one person is charged for, then dropped")
    limits.add_argument(
        "--horizon", type=horizon_steps, required=True, metavar="STEPS", help=f"windows of one person, or {UNBOUNDED}"
    )
    limits.add_argument("--participation_cap", type=int, metavar="STEPS", help="windows of one person, counted")
    limits.add_argument("--items_per_step", type=int, default=1, help="items of one person in a window (default: 1)")
    limits.add_argument("--selection", default="last", help="which of them: last, first or random (default: last)")
    limits.add_argument("--streams_per_person", type=int, help="streams of one person (default: 1)")
    tests = parser.add_argument_group("items")
    tests.add_argument("--domain", metavar="PATH", help="file with a public list of items, one per line")
    tests.add_argument("--streams", metavar="A,B,..", help="public streams to monitor (default: all)")
    tests.add_argument("--count_share", type=float, default=0.25, help="share of epsilon for counts (default: 0.25)")
    parser.add_argument("--shards", type=int, default=4, help="parallel shards; changes no answer (default: 4)")


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Add the options of a privacy budget."""
    budget = parser.add_argument_group("privacy")
    budget.add_argument("--epsilon", type=float, required=True, help="for each person over the whole run")
    budget.add_argument("--delta", type=float, required=True, help="for each person over the whole run")
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    budget.add_argument("--calibration", default="clock", help="clock (default), target_charging or paper")
    budget.add_argument("--beta", type=float, default=0.05, help="failure probability of the accuracy (default: 0.05)")


def fields(arguments: argparse.Namespace) -> FieldMapping:
    """Return which fields of the input are read."""
    return FieldMapping(
        user=arguments.user_field,
        item=arguments.item_field,
        time=arguments.time_field,
        stream=arguments.stream_field,
        time_unit=arguments.time_unit,
    )


def _time(text: str) -> float:
    """Return seconds since 1970 UTC from ISO 8601 text (UTC if it names no zone) or a number of seconds."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be ISO 8601 or seconds since 1970, got {text!r}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def horizon_steps(text: str) -> int | None:
    """Return a number of steps, or None for no bound."""
    if text == UNBOUNDED:
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number of steps or {UNBOUNDED}, got {text!r}") from None
