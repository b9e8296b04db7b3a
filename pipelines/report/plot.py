"""`privstream plot`: the chart of a result as a file."""

from __future__ import annotations

from typing import Any

from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.report.result import read_result
from privstream.pipelines.show.charts import Chart
from privstream.pipelines.sinks.row_files import check_destination, whole_file
from privstream.pipelines.terminal import say
from privstream.transforms.row_types import Time

OPTIONS: dict[str, dict[str, Any]] = {
    "result": {
        "metavar": "RESULT",
        "help": "output of a command, a file or a folder, with its guarantee file; or a view of a monitor",
    },
    "--output": {"required": True, "metavar": "PATH", "help": "the picture; ends in .png or .svg"},
}


def run(result: str, output: str) -> None:
    """Read the result and write its chart."""
    try:
        if not output.lower().endswith((".png", ".svg")):
            raise ValueError(f"--output must end in .png or .svg, got {output}")
        check_destination(output)
        chart = read_result(result, Time).chart()
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    write(chart, output)
    say(f"picture: {output}")


def write(chart: Chart, path: str) -> None:
    """Write a chart as its path ends; the file appears whole or not at all."""
    content = chart.png() if path.lower().endswith(".png") else chart.svg().encode()
    try:
        with whole_file(path) as stream:
            stream.write(content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from error


COMMAND = Command(description="Draws the chart of a result.", options=OPTIONS, run=run)
