"""`privstream report`, results as one page for people who did not run them; `privstream plot`, a chart as a file."""

from __future__ import annotations

from typing import Any

from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.console import clock
from privstream.pipelines.model.question import loaded
from privstream.pipelines.report.result import monitor_promise, output_of, read_result, results_of
from privstream.pipelines.sinks.row_files import check_destination, whole_file
from privstream.pipelines.terminal import say

TITLE = "Differentially private results"


def report(results: list[str], output: str, title: str) -> None:
    """Read the results, make the page, and write it."""
    try:
        _check(output, (".html",))
        with clock("reading and drawing results"):
            given = [output_of(path) for path in results]
            whole = monitor_promise(given[0]) if len(given) == 1 else None
            paths = [path for one in given for path in results_of(one)]
            page: str = loaded("report.page.page_of")(paths, title=title, whole=whole)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    _write(output, page.encode())
    say(f"report: {output} ({len(page.encode()) / 1e6:.1f} MB)")


def plot(result: str, output: str) -> None:
    """Read the result and write its chart."""
    try:
        _check(output, (".png", ".svg"))
        chart = read_result(result).chart()
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    _write(output, chart.png() if output.lower().endswith(".png") else chart.svg().encode())
    say(f"picture: {output}")


def _check(path: str, endings: tuple[str, ...]) -> None:
    if not path.lower().endswith(endings):
        raise ValueError(f"--output must end in {' or '.join(endings)}, got {path}")
    check_destination(path)


def _write(path: str, content: bytes) -> None:
    try:
        with whole_file(path) as stream:
            stream.write(content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from error


def _options(result: dict[str, Any], output: str, **more: Any) -> dict[str, dict[str, Any]]:
    return {**result, "--output": {"required": True, "metavar": "PATH", "help": output}, **more}


RESULT = "output of a command, a file or a folder, with its guarantee file; or a "
REPORT = Command(
    description="Makes one page of results: of each a sentence, a picture and a short table; all rows, what is "
    "guaranteed and how accurate numbers are can be opened. The page needs no network.",
    options=_options(
        {
            "results": {
                "nargs": "+",
                "metavar": "RESULT",
                "help": f"{RESULT}monitor, FILE.yaml or its folder, with all results",
            }
        },
        "the page; ends in .html",
        **{"--title": {"default": TITLE, "metavar": "TEXT", "help": f"heading (default: {TITLE})"}},
    ),
    run=report,
)
PLOT = Command(
    description="Draws the chart of a result.",
    options=_options(
        {"result": {"metavar": "RESULT", "help": f"{RESULT}view of a monitor"}},
        "the picture; ends in .png or .svg",
    ),
    run=plot,
)
