"""Wrong options and files, on every command: one line that names the field and the rule, and nothing is written."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from privstream.pipelines import cli

EVENTS = "--input events.jsonl --output rows.jsonl --noise_key_file key"
CLOCK = f"{EVENTS} --window 3600 --start 2024-01-01 --end 2024-01-01T02:00:00Z"
COMMANDS = {
    "heavy-hitters": f"{EVENTS} --window 3600 --epsilon 1 --delta 1e-6 --max_hits 2 --horizon 5",
    "counts": f"{EVENTS} --window 3600 --epsilon 1 --delta 1e-6 --max_contributions 2",
    "top-k": f"{CLOCK} --top 2 --epsilon 1 --domain domain",
    "alerts": f"{CLOCK} --epsilon 1 --rules rules",
    "histogram": f"{CLOCK} --epsilon 1 --domain domain",
    "quantiles": f"{CLOCK} --epsilon 1 --delta 1e-6 --max_contributions 2 --low 0 --high 9",
    "flags": f"{CLOCK} --epsilon 1 --domain domain --thresholds 5",
    "cardinality": f"{CLOCK} --epsilon 1 --timeout 60",
    "ranges": f"{CLOCK} --epsilon 1 --universe 64 --queries ranges",
    "predecessor": f"{CLOCK} --epsilon 1 --universe 64 --queries points",
    "queries": f"{EVENTS} --epsilon 1 --queries linear --domain domain --records 300 --alpha 0.3",
}
PLANS = {
    "heavy-hitters": "--epsilon 1 --delta 1e-6 --max_hits 2",
    "counts": "--epsilon 1 --delta 1e-6 --max_contributions 2",
    "top-k": "--epsilon 1 --items 10 --top 2 --windows 5",
    "alerts": "--epsilon 1 --rules 2 --windows 5",
    "histogram": "--epsilon 1 --categories 5 --windows 5",
    "quantiles": "--epsilon 1 --delta 1e-6 --max_contributions 2 --windows 5",
    "flags": "--epsilon 1 --categories 5 --windows 5",
    "cardinality": "--epsilon 1 --windows 5 --max_updates 9",
    "ranges": "--epsilon 1 --universe 64 --windows 5 --ranges 2",
    "predecessor": "--epsilon 1 --universe 64 --windows 5",
    "queries": "--epsilon 1 --records 100 --items 5 --planned 5",
}
EVERY = {
    "--epsilon 0": "epsilon must be finite and > 0, got 0.0",
    "--epsilon nan": "epsilon must be finite and > 0, got nan",
    "--epsilon inf": "epsilon must be finite and > 0, got inf",
    "--epsilon 1e300": "epsilon must be in [1e-09, 500], got 1e+300",
    "--epsilon 1e-300": "epsilon must be in [1e-09, 500], got 1e-300",
    "--beta 1": r"beta must be in (0, 1), got 1.0",
    "--beta 1e-300": "beta must be >= 1e-15, got 1e-300",
    "--noise_key_file none": "noise_key_file must be a readable file, got none",
    "--noise_key_file short": "noise_key_file must have at least 16 bytes, got 3",
    "--noise_key_file same": "noise_key_file must be random, with at least 8 different bytes, got 1",
    "--noise_key_file open": "noise_key_file must be readable by its owner alone, got open with mode 0644: chmod 600",
    "--noise_key_variable NO_SUCH_VARIABLE": "must not both be given",
    "--input none.jsonl": "--input must match at least one file: nothing matches none.jsonl",
    "--input 'none-*.parquet'": "none-*.parquet",
    "--input empty.avro": "empty.avro is empty",
    "--input noise.parquet": "noise.parquet is not a Parquet file",
    "--input noise.avro": "noise.avro is not an Avro file",
    "--output none/rows.jsonl": "--output must be in a folder that exists",
    "--output rows.txt": "--output must end in .avro, .parquet, .jsonl",
    "--output events.jsonl": "--output must not be written over --input",
    "--output key": "--output must",
    "--dead_letter events.jsonl": "--dead_letter must not be written over --input",
    "--dead_letter rows.jsonl": "--dead_letter must not be written over --output",
    "--watermark marks": "watermark must be given with --watch only",
    "--max-hits 3": "unknown option --max-hits",
    "--runner Foo": "--runner must be a runner that Beam knows",
    "--budget_limit 0": "must be EPSILON or EPSILON,DELTA with a finite epsilon > 0 and a delta in [0, 1), got '0'",
}
OF_PEOPLE = {
    "--input other.csv": "--user_field must name a field of other.csv: no `user` there, only: item, time",
    "--input '*.csv' --user_field nobody": "--user_field must name a field of",
}
OF_EVENTS = {"histogram", "flags"}  # by default: they read no user then
IN_TIME = {
    "--window 0": "window must be > 0 and a whole number of milliseconds",
    "--window 1y": "--window: must be a number of seconds, or a number with its unit, such as",
    "--window nan": "window must be finite, got nan",
    "--end 2023-01-01 --start 2024-01-01": "end must",
    "--start yesterday": "such as 2030-01-31T12:00:00Z, or a number, got 'yesterday'",
    "--start 20240306T204748": "must be ISO 8601 text with dashes and colons, such as",
    "--start 1704067200.0001": "--start must be >= 0 and a whole number of milliseconds",
    "--renew_every 90m": "--renew_every",
    "--allowed_lateness -1": "allowed_lateness must be >= 0",
    "--streams a --stream_field ''": "streams must not be given when no stream is read",
    "--watch 0": "watch must be",
}
OWN = {
    "heavy-hitters": {
        "--max_hits 0": "max_hits must be >= 1, got 0",
        "--max_hits 99999999999999999999": "max_hits must be between -2**40 and 2**40, got 99999999999999999999",
        "--horizon never": "--horizon: must be a whole number, got 'never'",
        "--delta 0": "delta must be in (0, 1), got 0.0",
        "--method none": "invalid choice: 'none'",
        "--domain empty": "domain must name at least one item",
        "--domain twice": "domain must hold distinct items",
        "--domain none": "domain must be a readable file",
        "--shards 10000000": "shards must be <= 32768, got 10000000",
    },
    "counts": {
        "--max_contributions 0": "max_contributions must be >= 1, got 0",
        "--over days": "--over: must be a number of seconds, or a number with its unit, such as 500ms",
        "--over start": "start must be given with a domain, and where counts are about more than one window",
        "--over 90m": "over must be a multiple of window, got 90 minutes with windows of 1 hour",
        "--over 2h --start 0": "--end, --horizon or --renew_every must be given where counts are about more",
        "--horizon 5": "start must be given with horizon",
        "--horizon 0 --start 0": "horizon must be >= 1, got 0",
        "--horizon 5 --start 0 --end 7200": "horizon must not be given with end",
        "--delta 0": "delta must be > 0 unless the list of items is public, got 0",
        "--delta 0.5": "delta must be <= 0.1 unless the list of items is public, got 0.5",
        "--unit event": "max_contributions must not be given when the unit is an event",
        "--value_field cents": "--max_value must be given with --value_field",
        "--max_value 0": "max_value must be >= 1, got 0",
        "--max_value 5 --value_field item": "must be different fields",
        "--max_value 5 --value_share 1": "value_share must be in (0, 1), got 1.0",
        "--max_value 5 --input other.csv --user_field item --item_field value": "must be different fields",
        "--signed_values": "--max_value must be given with --signed_values",
        "--top 0": "top must be >= 1, got 0",
        "--min_people 0": "min_people must be >= 1, got 0",
        "--min_people 5 --domain domain --start 0 --end 7200": "min_people must be 1 if the list of items is public",
        "--domain domain": "start must be given with a domain",
    },
    "top-k": {
        "--top 3": "top must",
        "--delta 1": "delta must be in [0, 1), got 1.0",
        "--shards 0": "shards must be >= 1",
    },
    "alerts": {
        "--rules none": "--rules must be a readable file",
        "--rules twice": "--rules: line 1",
        "--quiet -1": "quiet",
    },
    "histogram": {
        "--queries none": "queries must be among",
        "--max_contributions 5": "when the unit is an event",
        "--start 1970-01-01 --window 1": "end must be at most 1,048,576 windows after start, got 1,704,",
    },
    "quantiles": {
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
        "--over 90m": "over must be a multiple of window, got 90 minutes with windows of 1 hour",
        "--value_field ''": "value_field must not be empty",
        "--streams @nowhere": "--streams: must be a file that can be read (No such file or directory), got '@nowhere'",
    },
    "flags": {
        "--thresholds 0": "thresholds must be >= 1, got 0",
        "--thresholds x": "thresholds must",
        "--thresholds 99999999999999999999": "thresholds must be between -2**40 and 2**40, got 999",
    },
    "cardinality": {
        "--leave_values ''": "--leave_values: must be texts with commas between them, none of them empty, got ''",
        "--enter_values a,,b": "--enter_values: must be texts with commas between them",
        "--timeout 0": "timeout must",
    },
    "ranges": {
        "--universe 0": "universe must be >= 1, got 0",
        "--queries points": "fields must be low, high, time, stream, got 'point'",
        "--answers 0": "answers must be >= 1, got 0",
        "--delete_values ,": "--delete_values: must be texts",
    },
    "predecessor": {
        "--queries ranges": "fields must be point, time, stream",
        "--answers 0": "answers must be >= 1, got 0",
    },
    "queries": {"--records 0": "records must be >= 1, got 0", "--alpha nan": "alpha must be in (0, 1), got nan"},
}
PLANNED = {
    "--epsilon 0": "epsilon must be finite and > 0, got 0.0",
    "--beta 2": "beta must be in (0, 1), got 2.0",
    "--epsilon 1e300": "epsilon must be in [1e-09, 500], got 1e+300",
    "--epsilon 1e-300": "epsilon must be in [1e-09, 500], got 1e-300",
    "--beta 1e-300": "beta must be >= 1e-15, got 1e-300",
}
FURTHER_PLANS = {
    "alerts --neighbouring x": "--neighbouring: invalid choice: 'x'",
    "cardinality --windows 0": "windows must be >= 1, got 0",
    "cardinality --windows -1": "windows must be >= 1, got -1",
    "ranges --windows 0": "windows must be >= 1, got 0",
    "ranges --ranges 100001": "ranges must be <= 100000, got 100001",
    "ranges --queries ranges": "one of --ranges and --queries must be given",
    "heavy-hitters --delta 1e-320": "delta must be >= 1e-30, got 1e-320",
    "heavy-hitters --streams_per_person 9007199254740992": "streams_per_person must be between -2**40 and 2**40",
    "counts --over 7d": "window must be given where over is a duration",
    "counts --over 7d --window 5d": "over must be a multiple of window",
    "counts --over start": "end, --horizon or --renew_every must be given",
    "counts --over start --windows 2000000": "horizon must be <= 1048576, got 2000000",
    "counts --delta 0": "delta must be > 0 unless the list of items is public, got 0",
    "top-k --delta 1e-300": "delta must be >= 1e-30, got 1e-300",
    "histogram --windows 2000000000000": "windows must be between -2**40 and 2**40, got 2000000000000",
    "queries --delta nan": "delta must be in [0, 1), got nan",
}
SECRET = "person-4711"


def cases() -> list[tuple[str, str]]:
    """Return command lines and what they must be answered."""
    listed = []
    for command, options in COMMANDS.items():
        refused = EVERY | (IN_TIME if command != "queries" else {}) | OWN[command]
        refused |= {} if command in OF_EVENTS else OF_PEOPLE
        listed += [(f"{command} {options} {wrong}", rule) for wrong, rule in refused.items()]
    listed += [
        (f"plan {word} {options} {wrong}", rule) for word, options in PLANS.items() for wrong, rule in PLANNED.items()
    ]
    for further, rule in FURTHER_PLANS.items():
        word, wrong = further.split(" ", 1)
        listed.append((f"plan {word} {PLANS[word]} {wrong}", rule))
    for word in cli.SIMULATIONS:
        windows = "" if word == "queries" else "--windows 2"
        same = f"simulate {word} --users 5 --seed 1 --output new.jsonl {windows} --truth ./new.jsonl"
        listed.append((same, "--truth must not be written over --output, got ./new.jsonl"))
    return listed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with one file of everything."""
    event = {"user": SECRET, "item": SECRET, "time": "2024-01-01T00:00:01Z"}
    files = {
        "events.jsonl": json.dumps(event),
        "other.csv": "item,time",
        "domain": "a\nb\nc",
        "twice": "a\na",
        "empty": "",
        "empty.avro": "",
        "noise.avro": "no Avro",
        "noise.parquet": "no Parquet",
        "short": "abc",
        "key": "0123456789abcdef",
        "same": "k" * 16,
        "open": "0123456789abcdef",
        "rules": '{"name": "r", "at_least": 5}',
        "ranges": '{"low": 1, "high": 5}',
        "points": '{"point": 5}',
        "linear": '{"name": "y", "items": ["a"]}',
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for name in ("key", "short", "same"):
        (tmp_path / name).chmod(0o600)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("line", "rule"), cases(), ids=lambda text: text[-60:])
def test_it_is_refused(line: str, rule: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
    try:
        status = cli.main(shlex.split(line))
    except SystemExit as error:
        status = int(str(error.code))
    shown = capfd.readouterr()
    assert status == 2
    assert rule in shown.err
    assert re.fullmatch(r"(noise key: .*\n)?privstream [\w -]+: error: .*\n", shown.err)
    assert SECRET not in shown.err + shown.out
    assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before


def test_a_plan_that_no_method_can_meet_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    line = "plan heavy-hitters --epsilon 1e-9 --delta 1e-6 --max_hits 2 --count_share 0"
    assert cli.main(shlex.split(line)) == 2
    assert "epsilon must be large enough for thresholds of at most 1,048,576 people" in capsys.readouterr().err


EDGES = [
    *[(word, f"--{name} {value}") for word in PLANS for name, value in (("epsilon", "1e-9"), ("epsilon", "500"))],
    *[(word, "--delta 1e-30") for word in PLANS if word != "alerts"],
    *[(word, "--beta 1e-15") for word in PLANS],
    pytest.param("heavy-hitters", "--epsilon 500 --max_hits 1000 --delta 1e-12", marks=pytest.mark.slow),
    pytest.param("histogram", f"--windows {2**40}", marks=pytest.mark.slow),
    ("cardinality", f"--windows {2**40} --max_updates {2**40}"),
    ("ranges", f"--windows {2**40} --ranges {2**40} --universe {2**60}"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("word", "options"), EDGES, ids=" ".join)
def test_a_plan_at_the_edge_of_what_is_allowed_answers_or_says_why(
    word: str, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(shlex.split(f"plan {word} {PLANS[word]} {options} --json"))
    shown = capsys.readouterr()
    if status:
        assert re.fullmatch(rf"privstream plan {word}: error: [a-z_ -]+ must .*\n", shown.err)
    else:
        assert shown.err == ""
        assert json.loads(shown.out)
