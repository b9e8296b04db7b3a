"""The walk of a record through the code: which functions are called between a line of CSV and its row.

python tests/record_walk.py  # prints the table of docs/walk.md
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import apache_beam as beam
from privstream.pipelines import cli

ROOT = Path(__file__).parents[1]
PACKAGES = ("mechanisms", "transforms", "pipelines")
WINDOW = "--window 1h --start 2024-01-01 --end 2024-01-01T01:00 --domain items.txt"
BUDGET = "--epsilon 1 --max_contributions 1 --key key --ledger none --quiet"
BEFORE = ("apache_beam.internal.pickler", "apache_beam.options.pipeline_options")
"""What makes ready, besides `setup` of stages: workers unpickle these, and read options."""

Walk = dict[str, list[str]]
"""Functions by file, both in the order in which they are first called."""


def walk(folder: Path) -> Walk:
    """Answer `counts` for one record in a window, and return what is called while the pipeline runs in this process.

    What is made before (options, calibration, stages, also where workers unpickle these) and after (the report) is not
    on the way.
    """
    (folder / "events.csv").write_text("user,item,time\nu,i,2024-01-01T00:00:01Z\n")
    (folder / "items.txt").write_text("i\n")
    (folder / "key").write_bytes(bytes(range(32)))
    (folder / "key").chmod(0o600)
    places = {name: str(folder / name) for name in ("items.txt", "key", "events.csv", "rows.jsonl")}
    line = f"counts --input events.csv --output rows.jsonl {WINDOW} {BUDGET}"
    found: Walk = {}

    def called(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        name = code.co_qualname.rpartition(".")[2]
        package = frame.f_globals.get("__name__", "").split(".")
        written = not name.startswith("<") and not code.co_filename.startswith("<")  # no comprehension, no dataclass's
        ours = event == "call" and package[0] == "privstream" and package[1] in PACKAGES
        if ours and written and not makes_ready(frame):
            path = "/".join([*package[1:-1], Path(code.co_filename).name])
            if code.co_qualname not in found.setdefault(path, []):
                found[path].append(code.co_qualname)

    run = beam.Pipeline.run

    def followed(pipeline: beam.Pipeline, *arguments: Any) -> Any:
        threading.setprofile(called)
        sys.setprofile(called)
        try:
            return run(pipeline, *arguments)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    beam.Pipeline.run = followed
    try:
        status = cli.main([places.get(word, word) for word in line.split()])
    finally:
        beam.Pipeline.run = run
    if status != 0 or '"item": "i"' not in (folder / "rows.jsonl").read_text():
        raise RuntimeError(f"the record must become a row, got status {status}")
    return found


def makes_ready(frame: FrameType | None) -> bool:
    """Tell whether a call is part of what comes before the record."""
    while frame is not None:
        if frame.f_globals.get("__name__") in BEFORE or frame.f_code.co_name == "setup":
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        found = walk(Path(folder))
    print(f"{sum(map(len, found.values()))} functions in {len(found)} files:\n")
    print("| file | functions | the first one |\n|---|---|---|")
    for path, names in found.items():
        first = ", ".join(f"`{name}`" for name in names[:1])
        print(f"| `{path}` | {len(names)} | {first} |")


if __name__ == "__main__":
    main()
