"""Every question as the tests try it: a run and a plan that are taken, mistakes, and a folder with all that these name.

A new question has one entry in `EXAMPLES`. Whatever every command must do is then tried on it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from privstream.pipelines.questions.catalogue import question

FILES = "--input events.jsonl --output rows.jsonl"
KEY = "--noise_key_file key"
ON_A_CLOCK = "--window 3600 --start 2024-01-01 --end 2024-01-01T02:00:00Z --epsilon 1"
EVENT = {"user": "5", "item": "a", "time": "2024-01-01T00:00:01Z", "value": 5}
PUBLIC_FILES = {
    "domain": "a\nb\nc",
    "rules": '{"name": "r", "at_least": 5}',
    "ranges": '{"low": 1, "high": 5}',
    "points": '{"point": 5}',
    "linear": '{"name": "y", "items": ["a"]}',
}
"""What the options of the examples name, beside the events, the rows and the key."""


@dataclass(frozen=True)
class QuestionExample:
    """A question as the tests try it, in a folder of `write_folder`.

    Attributes:
        options: a run that is taken, but for its files and its key.
        plan: options of a plan that answers.
        of_events: whether the run protects an event, so that no user is read.
        refused: options, beside the others, that a run must refuse, and what is then said. Mistakes that all commands
            refuse alike are not among them.
        refused_plans: the same for a plan.
        without_end: what is said to a run on a clock that is given no end.
        values: values with which an option is taken, where the one for all commands (`VALUES` in
            `test_options.py`) is not.
    """

    options: str
    plan: str
    of_events: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    refused_plans: Mapping[str, str] = field(default_factory=dict)
    without_end: str = "end must be given when the input is bounded"
    values: Mapping[str, str] = field(default_factory=dict)


EXAMPLES = {
    "heavy-hitters": QuestionExample(
        options=f"{ON_A_CLOCK} --delta 1e-6",
        plan="--epsilon 1 --delta 1e-6 --windows 5 --max_contributions 20",
        refused={
            "--max_hits 0 --method clock": "max_hits must be >= 1, got 0",
            "--max_hits 2.5": "--max_hits: must be a whole number",
            "--max_hits 99999999999999999999 --method clock": "max_hits must be between -2**40 and 2**40, got 9999",
            "--epsilon 1e-9 --method clock": "epsilon must be large enough for thresholds",
            "--delta 0": "delta must be in (0, 1), got 0.0",
            "--max_per_window 0": "max_per_window must be >= 1, got 0",
            "--max_contributions 5 --method clock": "max_contributions must not be given with the method clock",
            "--method none": "invalid choice: 'none'",
            "--method auto": "invalid choice: 'auto'",
            "--domain empty": "domain must name at least one item",
            "--domain twice": "domain must hold distinct items",
            "--domain none": "domain must be a readable file, got 'none'",
        },
        refused_plans={
            "--epsilon 1,-1": "--epsilon must be finite and > 0, got -1.0",
            "--windows 0": "--windows must be >= 1, got 0",
            "--items 0": "--items must be >= 1, got 0",
        },
        without_end="end or --renew_every must be given: items stay found",
        values={
            "renew_every": "1h",
            "method": "status",
            "threshold": "5",
            "public_items": "domain",
            "max_contributions": "2",
            "max_per_window": "1",
            "max_hits": "3 --method clock",
        },
    ),
    "counts": QuestionExample(
        options=f"{ON_A_CLOCK} --delta 1e-6 --max_contributions 2",
        plan="--epsilon 1 --delta 1e-6 --max_contributions 2 --windows 5",
        refused={
            "--max_contributions 0": "max_contributions must be >= 1, got 0",
            "--over days": "over must be 'window', 'start' or a number of seconds, with windows of 1 hour, got 'days'",
            "--over 90m": "over must be a multiple of window, got 90 minutes with windows of 1 hour",
            "--delta 0": "delta must be > 0 unless the list of items is public, got 0",
            "--delta 0.5": "delta must be <= 0.1 unless the list of items is public, got 0.5",
            "--unit event": "max_contributions must not be given when the unit is an event",
            "--value_field cents": "--max_value must be given with --value_field",
            "--max_value 0": "max_value must be >= 1, got 0",
            "--max_value 5 --value_field item": "must be different fields",
            "--max_value 5 --input other.csv --user_field item --item_field value": "must be different fields",
            "--max_per_window 0": "max_per_window must be >= 1, got 0",
            "--max_per_window 2": "max_per_window must be < 2, --max_contributions, got 2",
            "--rising --over 2h": "rising must not be given where counts span windows",
            "--rising 0": "rising must be >= 1, got 0",
            "--public_items domain --over start": "public_items must not be given with a domain, or where counts are",
            "--public_items twice": "public_items must hold distinct items",
            "--at_least 1": "one standard deviation of the noise of a count, got 1",
            "--top 0": "top must be >= 1, got 0",
            "--min_people 0": "min_people must be >= 1, got 0",
            "--min_people 5 --domain domain": "must be 1 if the list of items is public",
        },
        refused_plans={
            "--over 7d": "window must be given where over is a duration",
            "--over 7d --window 5d": "over must be a multiple of window",
            "--over start --windows 2000000": "--window must make at most 1,048,576 windows, got 2,000,000",
            "--delta 0": "delta must be > 0 unless the list of items is public, got 0",
        },
        without_end="end or --renew_every must be given",
        values={
            "decimal": ", --max_value 500",
            "at_least": "50",
            "rising": "1",
            "renew_every": "1h",
            "over": "2h",
            "top": "3",
            "unit": "person",
            "max_contributions": "3",
            "domain": "domain",
            "public_items": "domain",
            "value_field": "cents --max_value 9",
            "max_per_window": "1",
        },
    ),
    "top-k": QuestionExample(
        options=f"{ON_A_CLOCK} --top 1 --delta 1e-6",
        plan="--epsilon 1 --items 10 --top 2 --windows 5",
        refused={
            "--top 3 --domain domain": "top must be < 3, the number of items in domain, got 3",
            "--public_items domain --method gaps": "public_items must not be given with the method gaps",
            "--max_per_window 5 --max_contributions 4 --domain domain --method gaps": "must be <= --max_contributions",
            "--delta 1": "delta must be in [0, 1), got 1.0",
            "--domain none": "domain must be a readable file, got 'none'",
        },
        refused_plans={
            "--windows 0": "windows must be >= 1, got 0",
            "--items 2": "top must be < 2, the number of items in domain, got 2",
        },
        without_end="end or --renew_every must be given: items stay found",
        values={
            "top": "2",
            "max_contributions": "4",
            "max_per_window": "1",
            "public_items": "domain",
            "method": "gaps --domain domain",
        },
    ),
    "alerts": QuestionExample(
        options=f"{ON_A_CLOCK} --rules rules",
        plan="--epsilon 1 --rules 2 --windows 5",
        refused={
            "--rules none": "--rules must be a readable file: cannot read none",
            "--rules twice": "--rules: line 1",
            "--min_alerts 5": "min_alerts must not be given with the method counts: it is for sparse_vector",
            "--max_hits 5": "max_hits must not be given with the method counts: it is for status",
            "--dead_letter rules": "--dead_letter must not be written over --rules",
        },
        refused_plans={
            "--windows 0": "windows must be >= 1, got 0",
            "--rules -1": "rules must be >= 1, got -1",
            "--rules none": "--rules must be a readable file: cannot read none",
        },
        without_end="end or --renew_every must be given: items stay found",
        values={
            "method": "sparse_vector",
            "max_contributions": "4",
            "max_per_window": "1",
            "min_alerts": "3 --method sparse_vector",
            "max_hits": "3 --method status --delta 1e-6",
        },
    ),
    "histogram": QuestionExample(
        options=f"{ON_A_CLOCK} --domain domain",
        plan="--epsilon 1 --categories 5 --windows 5",
        of_events=True,
        refused={
            "--queries none": "queries must be among histogram",
            "--queries quantile:2": "quantile:Q must have Q in (0, 1], got quantile:2",
            "--unit person": "max_contributions must be given when the unit is a person",
            "--max_contributions 5": "when the unit is an event",
            "--categories_per_row 2": "separator must be given",
            "--streams a --input other.csv": "--stream_field must name a field of other.csv",
            "--start 1970-01-01 --window 1": "--window must make at most 1,048,576 windows, got 1,704,",
        },
        refused_plans={"--windows 2000000000000": "windows must be between -2**40 and 2**40, got 2000000000000"},
    ),
    "quantiles": QuestionExample(
        options=f"{ON_A_CLOCK} --delta 1e-6 --max_contributions 2 --low 0 --high 9",
        plan="--epsilon 1 --delta 1e-6 --max_contributions 2 --windows 5",
        refused={
            "--quantiles 2": "quantiles must be in (0, 1), got 2.0",
            "--quantiles 0.9,0.5": "quantiles must increase, got 0.9, 0.5",
            "--quantiles ''": "--quantiles: must be numbers with commas between them",
            "--high 0": "high must be > low, got 0.0 <= 0.0",
            "--high nan": "high must be finite, got nan",
            "--scale log": "low must be > 0 with a log scale, got 0.0",
            "--resolution 1": "resolution must be >= 2, got 1",
            "--resolution 100000": "resolution must be <= 65536, got 100000",
            "--max_contributions 0": "max_contributions must be >= 1, got 0",
            "--unit event": "max_contributions must not be given when the unit is an event",
            "--max_per_window 0": "max_per_window must be >= 1, got 0",
            "--value_field ''": "value_field must not be empty",
            "--streams @none": "--streams: must be a file that can be read (No such file or directory), got '@none'",
        },
        values={
            "max_per_window": "2",
            "value_field": "number",
            "scale": "log --low 1",
            "max_contributions": "3",
            "unit": "person",
        },
    ),
    "flags": QuestionExample(
        options=f"{ON_A_CLOCK} --domain domain --thresholds 5",
        plan="--epsilon 1 --categories 5 --windows 5",
        of_events=True,
        refused={
            "--thresholds 0": "thresholds must be >= 1, got 0",
            "--thresholds x": "thresholds must be a whole number, or a file with a JSON object",
            "--thresholds 99999999999999999999": "thresholds must be between -2**40 and 2**40, got 999",
        },
    ),
    "cardinality": QuestionExample(
        options=f"{ON_A_CLOCK} --timeout 60",
        plan="--epsilon 1 --windows 5 --max_updates 9",
        refused={
            "--leave_values ''": "--leave_values: must be texts with commas between them, none of them empty, got ''",
            "--enter_values a,,b": "--enter_values: must be texts with commas between them",
            "--enter_values a --leave_values a": "--enter_values and --leave_values must have nothing in common",
            "--timeout 0": "--timeout must be > 0 and a whole number of milliseconds, got 0.0 seconds",
            "--max_updates 0": "--max_updates must be >= 1, got 0",
            "--max_contributions 0": "--max_contributions must be >= 1, got 0",
            "--max_contributions 1 --method sparse_counter": "must not be given with method sparse_counter",
        },
        refused_plans={
            "--windows 0": "windows must be >= 1, got 0",
            "--windows -1": "windows must be >= 1, got -1",
        },
        values={"max_contributions": "2", "method": "counts"},
        without_end="--max_contributions must be given where the run has no end",
    ),
    "ranges": QuestionExample(
        options=f"{ON_A_CLOCK} --universe 64 --queries ranges",
        plan="--epsilon 1 --universe 64 --windows 5 --queries ranges",
        refused={
            "--universe 0": "universe must be >= 1, got 0",
            "--queries points": "fields must be low, high, got 'point'",
            "--queries none": "--queries must be a readable file: cannot read none",
            "--delete_values ,": "--delete_values: must be texts",
        },
        refused_plans={
            "--universe 0": "universe must be >= 1, got 0",
            "--windows 0": "windows must be >= 1, got 0",
        },
    ),
    "predecessor": QuestionExample(
        options=f"{ON_A_CLOCK} --universe 64 --queries points",
        plan="--epsilon 1 --universe 64 --windows 5 --queries points",
        refused={
            "--queries ranges": "fields must be point, got",
        },
        values={"delta": "1e-6 --delete_values out"},
    ),
    "queries": QuestionExample(
        options="--epsilon 1 --queries linear --domain domain --records 300 --alpha 0.3",
        plan="--epsilon 1 --records 100 --items 5 --planned 5",
        refused={
            "--records 0": "records must be >= 1, got 0",
            "--planned 0": "queries must be >= 1, got 0",
            "--alpha nan": "alpha must be in (0, 1), got nan",
            "--user_field item": "must be different fields",
            "--queries none": "--queries must be a readable file: cannot read none",
            "--domain none": "domain must be a readable file, got 'none'",
            "--dead_letter linear": "--dead_letter must not be written over --queries",
        },
        refused_plans={
            "--delta nan": "delta must be in [0, 1), got nan",
            "--items 0": "--items must be >= 1, got 0",
            "--alpha 1": "alpha must be in (0, 1), got 1.0",
        },
    ),
}

ONE_FOR_ALL = ("cardinality", "queries")
"""The questions with which the tests try what all commands have from the same place: one in windows, one without."""
SHARED_OPTIONS = (
    *("dataset", "dead_letter", "input_format", "item_field", "ledger", "noise_key_file", "noise_key_variable"),
    *("output_format", "run_id", "time_field", "time_unit", "user_field", "budget_limit", "overwrite", "dry_run"),
    "workers",
    *("delimiter", "encoding", "quote", "time_format", "time_zone", "null", "trim", "normalize", "fold_case"),
)
"""Options that all commands have from the same place."""


def in_windows(word: str) -> bool:
    """Return whether a question is about events in windows of time; `queries` is about one data set."""
    return question(word).watched == "input"


def options(word: str, key: str = KEY) -> str:
    """Return the options of a run that is taken, in a folder of `write_folder`."""
    return f"{FILES} {key} {EXAMPLES[word].options}".replace("  ", " ")


def run_line(word: str) -> str:
    """Return the command line of a run that is taken."""
    return f"{word} {options(word)}"


def plan_line(word: str) -> str:
    """Return the command line of a plan that answers."""
    return f"plan {word} {EXAMPLES[word].plan}"


def write_folder(folder: Path, event: Mapping[str, object] | None = None) -> Path:
    """Write one file of everything that the examples name: one event, the public files, and a key."""
    (folder / "events.jsonl").write_text(json.dumps(event or EVENT))
    for name, content in PUBLIC_FILES.items():
        (folder / name).write_text(content)
    (folder / "key").write_text("0123456789abcdef")
    (folder / "key").chmod(0o600)
    return folder
