"""`privstream init INPUT`: writes a monitor to fill in, with the names of the fields of a file."""

from __future__ import annotations

import json
from pathlib import Path

from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.sources.files import FORMATS, match_files, opened_events
from privstream.pipelines.stores import check_destination, check_new
from privstream.pipelines.terminal import say

TEMPLATE = """\
# A monitor: questions about one stream of events, with one privacy budget.
# Fields of the input: {names}
data:
  input: {input}
  user: FILL_IN  # the field with who is protected: what one of them does stays hidden
  time: FILL_IN  # the field with when it happened
  item: FILL_IN  # the field with what is counted; several: [country, page]
windows: {{window: 1d, start: FILL_IN, end: FILL_IN}}  # such as 2026-01-01
privacy: {{epsilon: 1, delta: 1.0e-6}}  # delta must be far below 1 / (number of people)
questions:  # `share` divides the budget
  items: {{question: counts, share: 2, max_contributions: FILL_IN}}  # per person; privstream suggest finds one
  # prices: {{question: quantiles, value: price, quantiles: [0.5, 0.99], low: 1, high: 1000}}
views:  # cost nothing
  largest: {{of: items, largest: 10}}
account: {{key: key}}  # openssl rand -out key 32 && chmod 600 key
output: {{path: out}}
"""


def run(input: str, output: str) -> None:
    """Read the names, and write the file."""
    try:
        check_destination(output)
        check_new(output)
        file = match_files(input, None)[0]
        with opened_events(file) as stream:
            schema = FORMATS[file.format].schema(stream)
    except (ValueError, OSError) as error:
        raise UsageError(str(error).replace("; --overwrite replaces it", "").replace("--input ", "INPUT ")) from error
    names = "one JSON object on each line has its own" if schema is None else json.dumps(schema.names)[1:-1]
    Path(output).write_text(TEMPLATE.format(names=names, input=json.dumps(input)), encoding="utf-8")
    say(f"{output}: write what belongs in place of FILL_IN, then: privstream plan {output}")


COMMAND = Command(
    description="Writes a monitor, a file of questions with one privacy budget, to fill in. A comment in it has the "
    "names of the fields of the input: look at them before you share it.",
    options={
        "input": {"metavar": "INPUT", "help": "events: a path, a folder or a glob"},
        "--output": {"metavar": "PATH", "default": "monitor.yaml", "help": "a new file (default: monitor.yaml)"},
    },
    run=run,
)
