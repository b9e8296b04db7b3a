"""`privstream report`: results as one page, for people who did not run them."""

from __future__ import annotations

from typing import Any

from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.model.question import loaded
from privstream.pipelines.report.result import monitor_promise, output_of, results_of
from privstream.pipelines.sinks.row_files import check_destination, whole_file
from privstream.pipelines.terminal import say

TITLE = "Differentially private results"


OPTIONS: dict[str, dict[str, Any]] = {
    "results": {
        "nargs": "+",
        "metavar": "RESULT",
        "help": "output of a command, a file or a folder, with its guarantee file; or a monitor, FILE.yaml or its "
        "folder, with all results",
    },
    "--output": {"required": True, "metavar": "PAGE", "help": "the page; ends in .html"},
    "--title": {"default": TITLE, "metavar": "TEXT", "help": f"heading (default: {TITLE})"},
}


def run(results: list[str], output: str, title: str) -> None:
    """Read the results, make the page, and write it."""
    try:
        if not output.lower().endswith(".html"):
            raise ValueError(f"--output must end in .html, got {output}")
        check_destination(output)
        with clock("reading and drawing results"):
            given = [output_of(path) for path in results]
            whole = monitor_promise(given[0]) if len(given) == 1 else None
            paths = [path for one in given for path in results_of(one)]
            page = loaded("report.page.page_of")(paths, title=title, whole=whole)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    try:
        with whole_file(output) as stream:
            stream.write(page.encode())
    except OSError as error:
        raise RunError(f"cannot write {output}: {error}") from error
    say(f"report: {output} ({len(page.encode()) / 1e6:.1f} MB)")


COMMAND = Command(
    description="Makes one page of results: of each a sentence, a picture and a short table; all rows, what is "
    "guaranteed and how accurate numbers are can be opened. The page needs no network.",
    options=OPTIONS,
    run=run,
)
