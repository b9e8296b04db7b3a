"""Options that several pipelines have, beside those that Beam knows."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from privstream.mechanisms import checks
from privstream.mechanisms.monitor.threshold_monitor import ThresholdMonitor
from privstream.pipelines.accounts.ledger import DEFAULT_DATASET, ENDING
from privstream.pipelines.accounts.spending import Limit
from privstream.pipelines.sinks.row_files import FORMATS
from privstream.pipelines.sinks.window_files import DEFAULT_FORMAT
from privstream.pipelines.sources.fields import DEFAULT_STREAM, FieldMapping
from privstream.pipelines.sources.folder_looks import ARRIVAL, CLOCKS

UNBOUNDED = "unbounded"
STREAMS_NEEDED = "every event then needs a stream; needed with --stream_field"


def add_files(
    parser: argparse.ArgumentParser, *, user: str = "person", item: str = "item", watched: str = "input"
) -> None:
    """Add: where events come from, and where rows go.

    `user` and `item` say what these fields are, `watched` which option it is whose files may come without an end.
    """
    files = parser.add_argument_group("input and output")
    kafka = ", or kafka://host:port/topic" if watched == "input" else ""
    files.add_argument(
        "--input", required=True, metavar="PATH", help=f"events: a path or glob, .avro .parquet .jsonl .csv{kafka}"
    )
    files.add_argument("--output", required=True, metavar="PATH", help="rows: .avro .parquet .jsonl, or - for a table")
    files.add_argument(
        "--overwrite", action="store_true", help="replace a file of rows, and its guarantee, if there is one"
    )
    files.add_argument(
        "--dead_letter", metavar="PATH", help="records that could not be used, as JSON lines; guard it like the input"
    )
    files.add_argument("--input_format", choices=("avro", "parquet", "jsonl", "csv"), help="default: by ending")
    files.add_argument("--user_field", default="user", help=f"field with the {user} (default: user)")
    files.add_argument("--item_field", default="item", help=f"field with the {item} (default: item)")
    files.add_argument("--time_field", default="time", help="field with the time (default: time)")
    if watched == "input":
        files.add_argument(
            "--stream_field", metavar="NAME", help="field with the stream (default: stream with --streams, else none)"
        )
    files.add_argument("--time_unit", choices=("s", "ms", "us", "ns"), help="unit of times that are plain numbers")
    _add_endless(parser, watched)


def _add_endless(parser: argparse.ArgumentParser, watched: str) -> None:
    """Add: input, or whatever is `watched`, without an end."""
    events = watched == "input"
    endless = parser.add_argument_group(
        f"{watched} without an end",
        "--output and --dead_letter are folders then: "
        + ("each window of each stream becomes a file of its own" if events else "answers become files by the moment"),
    )
    endless.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help=f"watch the folder --{watched}, or its files that match a glob, so often",
    )
    covered = "--allowed_lateness must cover the way of an event into a file" if events else "a query needs no time"
    endless.add_argument(
        "--watermark",
        choices=CLOCKS,
        help=f"how far the {watched} {'is' if events else 'are'} complete: up to the time of arrival (default: "
        f"{ARRIVAL}; {covered}), or up to marks _UNTIL_20300101T120000Z in the folder",
    )
    if events:
        endless.add_argument(
            "--kafka_setting",
            action="append",
            metavar="NAME=VALUE",
            help="of librdkafka, for --input kafka://host:port/topic; @FILE for a VALUE that is secret; once or more",
        )
    endless.add_argument("--output_format", choices=FORMATS, help=f"of these files (default: {DEFAULT_FORMAT})")


def add_windows(parser: argparse.ArgumentParser, *, clock: bool) -> None:
    """Add: which windows are looked at; on a public `clock`, each from `--start` to `--end` is published."""
    windows = parser.add_argument_group("windows")
    windows.add_argument("--window", type=float, required=True, metavar="SECONDS", help="length of a window")
    if not clock:
        windows.add_argument("--period", type=float, metavar="SECONDS", help="between window starts (default: window)")
    windows.add_argument(
        "--start", type=_time, required=clock, metavar="TIME", help="start of the first window, ISO 8601 or epoch s"
    )
    windows.add_argument(
        "--end",
        type=_time,
        metavar="TIME",
        help="no window ends after this" + ("; every window until then is published, empty ones too" if clock else ""),
    )
    windows.add_argument(
        "--allowed_lateness", type=float, default=0, metavar="SECONDS", help="a window stays open so long (default: 0)"
    )


def add_budget(parser: argparse.ArgumentParser, *, unit: str, delta: bool | None) -> argparse._ArgumentGroup:
    """Add the budget for a `unit`, with a delta that is required, optional (None) or not there; return the group."""
    budget = parser.add_argument_group("privacy")
    budget.add_argument("--epsilon", type=float, required=True, help=f"bound on what leaks about {unit}, > 0")
    if delta is not False:
        budget.add_argument(
            "--delta",
            type=float,
            required=delta is True,
            default=0.0,
            help="probability of leaking more; far below 1 / people" + ("" if delta else " (default: 0, never)"),
        )
    budget.add_argument("--beta", type=float, default=0.05, help="failure probability of the accuracy (default: 0.05)")
    return budget


def add_count_share(budget: argparse._ArgumentGroup) -> None:
    """Add what noisy counts of hits get of epsilon."""
    default = ThresholdMonitor.count_share
    budget.add_argument(
        "--count_share",
        type=float,
        default=default,
        help=f"share of epsilon for noisy counts of hits (default: {default:g}); with 0 there are none",
    )


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the noise key."""
    key = parser.add_argument_group("noise key (a secret; the same key gives the same rows for the same events)")
    key.add_argument("--noise_key_file", metavar="PATH", help="file with the key, readable by every worker")
    key.add_argument("--noise_key_variable", metavar="NAME", help="environment variable with the key")
    key.add_argument(
        "--run_id",
        help="public name of the run (default: a fingerprint of input and options); needed if the input has no end",
    )
    account = parser.add_argument_group("account (what all runs on the same people cost; see privstream budget)")
    account.add_argument(
        "--ledger",
        metavar="PATH",
        help=f"file in which each run is written down (default: the key file's name and {ENDING}), or none",
    )
    account.add_argument(
        "--dataset",
        default=DEFAULT_DATASET,
        metavar="NAME",
        help=f"public name of the data whose budget this run spends (default: {DEFAULT_DATASET})",
    )
    account.add_argument(
        "--budget_limit",
        type=_limit,
        metavar="EPSILON[,DELTA]",
        help="do not start a run that would bring the data set above this: EPSILON is the sum of all epsilons, with "
        "DELTA that of all releases together at this delta",
    )


def add_public(parser: argparse.ArgumentParser, *, domain: bool | None, named: bool = True) -> None:
    """Add what is public: streams and, unless `domain` is False, a list of items (required if it is True).

    `named` tells whether streams must be named where events have one.
    """
    public = parser.add_argument_group("public knowledge")
    if domain is not False:
        public.add_argument(
            "--domain", required=domain is True, metavar="PATH", help="file with a public list of items, one per line"
        )
    need = (
        STREAMS_NEEDED
        if named
        else "default: all that occur in --stream_field; needed with it where --domain, --start and an end are given"
    )
    public.add_argument("--streams", metavar="A,B,..", help=f"public streams to watch; {need}")
    public.add_argument("--streams_per_person", type=int, help="streams of one person (default: 1)")
    add_shards(parser)


def add_shards(parser: argparse.ArgumentParser) -> None:
    """Add how the work is shared out, which changes no answer."""
    running = parser.add_argument_group("running")
    running.add_argument("--shards", type=int, default=4, help="parallel shards; changes no answer (default: 4)")


def streams(arguments: argparse.Namespace, present: bool, *, unnamed: bool = False) -> tuple[str, ...] | None:
    """Return the public streams, or None; `present` tells whether a stream of each event is read.

    Raises:
        ValueError: something is said of streams although none are read, or they are not named, unless they can be
            watched `unnamed`.
    """
    for name in ("streams", "streams_per_person"):
        if not present and getattr(arguments, name, None) is not None:
            raise ValueError(f"{name} must not be given when no stream is read; --stream_field names its field")
    if present and arguments.streams is None and not unnamed:
        raise ValueError("streams must be given with --stream_field")
    return texts("streams", arguments.streams)


def texts(name: str, text: str | None) -> tuple[str, ...] | None:
    """Return the texts of a list that was given, or None.

    Raises:
        ValueError: one of them is empty.
    """
    parts = None if text is None else tuple(text.split(","))
    if parts and "" in parts:
        raise ValueError(f"{name} must be texts with commas between them, none of them empty, got {text!r}")
    return parts


def fields(arguments: argparse.Namespace) -> FieldMapping:
    """Return which fields of the input are read; a stream only where the options ask for one."""
    stream = getattr(arguments, "stream_field", None)
    if stream is None:
        stream = "" if getattr(arguments, "streams", None) is None else DEFAULT_STREAM
    user = arguments.user_field if _reads_users(arguments) else ""
    if not user and _reads_users(arguments):
        raise ValueError("user_field must not be empty")
    return FieldMapping(
        user=user,
        item=arguments.item_field,
        time=arguments.time_field,
        stream=stream,
        time_unit=arguments.time_unit,
    )


def _limit(text: str) -> Limit:
    """Return the largest total that is allowed."""
    try:
        epsilon, *delta = (float(part) for part in text.split(","))
        checks.positive("epsilon", epsilon)
        return Limit(epsilon, *(checks.probability("delta", each, zero=True) for each in delta))
    except (TypeError, ValueError):
        rule = "must be EPSILON or EPSILON,DELTA with a finite epsilon > 0 and a delta in [0, 1)"
        raise argparse.ArgumentTypeError(f"{rule}, got {text!r}") from None


def _reads_users(arguments: argparse.Namespace) -> bool:
    """Tell whether it matters whose an event is: not for histograms and flags of events."""
    return not (hasattr(arguments, "max_contributions") and arguments.unit == "event")


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
