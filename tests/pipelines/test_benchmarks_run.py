"""Every benchmark runs at a tiny size and leaves results that can be read; on Flink it can be started."""

import csv
import importlib
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("[!_]*.py"))
ON_FLINK = "flink_"
"""Benchmarks of this name start a cluster and run for minutes at any size; the tests of runners cover what they do."""


ON_PIPELINES = "_throughput.py"
"""Benchmarks of this name measure each run in a process of its own, as continual_counters.py does too."""


def here(function: Callable[..., None], *arguments: Any) -> tuple[float, float, int, int]:
    """Call a function as `_measure.in_own_process` does, in this process, and measure nothing."""
    function(*arguments)
    return importlib.import_module("_measure").Cost(1.0, 1.0, 1, 1)


def run(monkeypatch: pytest.MonkeyPatch, script: str, *options: str) -> None:
    """Run a benchmark in this process, which has loaded Beam; what it measures by itself has its own processes."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    if script.endswith(ON_PIPELINES):
        monkeypatch.setattr(importlib.import_module("_throughput"), "in_own_process", here)
    monkeypatch.setattr(sys, "argv", [script, *options])
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("script", [name for name in SCRIPTS if name.startswith(ON_FLINK)])
def test_benchmarks_on_flink_can_be_started(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(monkeypatch, script, "--help")
    assert "--quick" in capsys.readouterr().out


@pytest.mark.slow
def test_a_benchmark_is_a_program() -> None:
    found = subprocess.run([sys.executable, BENCHMARKS / "noise.py", "--help"], capture_output=True, check=True)
    assert b"--quick" in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", [name for name in SCRIPTS if not name.startswith(ON_FLINK)])
def test_benchmark_runs(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in (BENCHMARKS / "results").iterdir()}
    run(monkeypatch, script, "--quick", "--results", str(tmp_path))
    tables, pictures = sorted(tmp_path.glob("*.csv")), sorted(tmp_path.glob("*.png"))
    assert tables and pictures
    for table in tables:
        with open(table, newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows and all(None not in row.values() for row in rows)
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert before == {path: path.stat().st_mtime_ns for path in (BENCHMARKS / "results").iterdir()}


def test_there_are_benchmarks() -> None:
    assert {"noise.py", "heavy_hitters_throughput.py", "heavy_hitters_accuracy.py"} <= set(SCRIPTS)
