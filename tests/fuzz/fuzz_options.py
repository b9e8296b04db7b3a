"""Options that nobody should give: numbers, texts, times and paths of every kind."""

import random
import shlex
from pathlib import Path

from fuzz_commands import QUESTIONS, arguments_of
from privstream.pipelines.questions.catalogue import WORDS
from questions import plan_line

NUMBERS = [
    "0", "-0", "-1", "1", "2", "1.5", "1e5", "1e400", "-1e400", "1e-400", "5e-324", "nan", "NaN", "inf", "-inf", "",
    " ", " 5", "5 ", "\u0665",
    "\uff11", "1_000", "0x10", "1e", "e5", "++1", "--1", "1,5", "9" * 30, "9" * 5000, "1/2", "True", "None", "-",
    "unbounded", "1099511627777",
    "9007199254740993", "18446744073709551616", "0.9999999999999999", "1.0000000000000002", "5s", "\x00", "\x1b[2J",
    "\u202e5", "\n5",
]  # fmt: skip
TEXTS = [
    "", " ", ",", ",,", "a,,b", "a,a", "\x00", "\x1b[31mred", "\u202e", "\x9b2J", "a\nb", "\r", "\ud800",
    "x" * 9000, "--", "-", "-x", "'", '"',
    "*", "?", "[", "../..", "nan", "user", "item", "time", "stream", "all", "auto", "add_remove", "🙂", "%s", "{}",
    "$HOME", "`id`", "\\",
]  # fmt: skip
PATHS = [
    "", ".", "/", "/dev/null", "/dev/full", "/nonexistent/x.jsonl", "x\x00y.jsonl", "a\nb.jsonl", "s3://bucket/x.jsonl",
    "ftp://x/y.csv", "*", "[.csv", "~/x.csv", "http://127.0.0.1:1/x.csv", "/proc/self/mem", "x" * 300 + ".csv",
    "\x1b[2J.csv", "\u202e.csv", "kafka://x", "-",
]  # fmt: skip
TIMES = [
    "", "now", "2024", "2024-13-01", "2024-01-01T00:00:00Z", "2023-12-31", "2030-01-01", "9999-12-31", "0001-01-01",
    "1960-01-01", "nan", "inf", "-1", "1e400", "1e18", "1704067200.5", "2024-01-01T00:00:07", "\x1b[2J", "\u0662",
]  # fmt: skip
POOLS = (NUMBERS, TEXTS, TIMES, PATHS)

SLOW = ("--watch", "--traceback")
"""Options that make a run without an end, or that show what must not be shown on purpose."""

EXTRA = {
    "--beta": NUMBERS, "--shards": NUMBERS, "--allowed_lateness": NUMBERS, "--delta": NUMBERS,
    "--neighbouring": TEXTS, "--run_id": TEXTS,
    "--user_field": TEXTS, "--item_field": TEXTS, "--time_field": TEXTS, "--stream_field": TEXTS,
    "--streams": TEXTS, "--time_unit": TEXTS,
    "--input_format": TEXTS, "--dead_letter": PATHS, "--noise_key_variable": TEXTS, "--selection": TEXTS,
    "--items_per_step": NUMBERS,
    "--method": TEXTS, "--unit": TEXTS, "--period": NUMBERS, "--participation_cap": NUMBERS, "--queries": TEXTS,
    "--separator": TEXTS,
    "--runner": TEXTS, "--direct_running_mode": TEXTS, "--direct_num_workers": NUMBERS, "--no_such_option": TEXTS,
    "--kafka_setting": TEXTS,
    "--watermark": TEXTS, "--output_format": TEXTS, "--max_hits": NUMBERS, "--quiet": NUMBERS, "--largest": NUMBERS,
    "--timeout": NUMBERS,
    "--categories_per_row": NUMBERS, "--streams_per_person": NUMBERS, 
    "--max_updates": NUMBERS,
}  # fmt: skip
KINDS = {
    "--input": PATHS, "--output": PATHS, "--dead_letter": PATHS, "--noise_key_file": PATHS, "--domain": PATHS,
    "--rules": PATHS,
    "--queries": PATHS, "--start": TIMES, "--end": TIMES, "--run_id": TEXTS, "--enter_values": TEXTS,
    "--leave_values": TEXTS,
    "--delete_values": TEXTS, "--thresholds": [*NUMBERS, *PATHS],
}  # fmt: skip


def hostile_call(chance: random.Random, folder: Path, source: Path) -> list[str]:
    """Return a call of which one, two or three options are hostile."""
    name = chance.choice(list(QUESTIONS))
    call = arguments_of(name, folder, source)
    for _ in range(chance.choice([1, 1, 2, 3])):
        places = [place for place, word in enumerate(call) if word.startswith("--") and place + 1 < len(call)]
        kind = chance.random()
        if kind < 0.55:
            place = chance.choice(places)
            pool = KINDS.get(call[place], NUMBERS)
            call[place + 1] = chance.choice(pool if chance.random() < 0.8 else chance.choice(POOLS))
        elif kind < 0.65:
            place = chance.choice(places)
            del call[place : place + chance.choice([1, 2])]
        else:
            option = chance.choice(list(EXTRA))
            value = chance.choice(EXTRA[option] if chance.random() < 0.8 else chance.choice(POOLS))
            call += [option, value] if chance.random() < 0.5 else [f"{option}={value}"]
    return call


def hostile_plan(chance: random.Random) -> list[str]:
    """Return a call of `plan` of which one or two numbers are hostile."""
    call = shlex.split(plan_line(chance.choice(WORDS)))
    for _ in range(chance.choice([1, 1, 2])):
        place = chance.choice(
            [place for place, word in enumerate(call) if word.startswith("--") and place + 1 < len(call)]
        )
        call[place + 1] = chance.choice(NUMBERS)
    return call
