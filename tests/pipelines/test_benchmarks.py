"""Every benchmark runs at a tiny size, and the standard methods get what they are said to get."""

import csv
import importlib
import math
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from privstream.mechanisms import SeededNoise, Sparse
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.sparse_vector.query_mechanism import HiddenThreshold, Progress
from privstream.mechanisms.sparse_vector.sparse import PureComposition
from privstream.pipelines import cli
from scipy import special

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


def program_here(command: Sequence[str]) -> tuple[float, float, int, int]:
    """Run a program as `_measure.of_program` does, that of privstream in this process, and measure nothing."""
    if command[1] == "-c":
        assert cli.main(command[3:]) == 0
    else:
        subprocess.run(command, capture_output=True, check=True)
    return importlib.import_module("_measure").Cost(1.0, 1.0, 1, 1)


def run(monkeypatch: pytest.MonkeyPatch, script: str, *options: str) -> None:
    """Run a benchmark in this process, which has loaded Beam; what it measures by itself has its own processes."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    if script.endswith(ON_PIPELINES):
        monkeypatch.setattr(importlib.import_module("_throughput"), "in_own_process", here)
    if script == "one_pass.py":  # of the two that measure whole programs; the other one is peers.py
        monkeypatch.setattr(importlib.import_module("_measure"), "of_program", program_here)
    monkeypatch.setattr(sys, "argv", [script, *options])
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("script", [name for name in SCRIPTS if name.startswith(ON_FLINK)])
def test_benchmarks_on_flink_can_be_started(script, monkeypatch, capsys):
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


METHODS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "_standard_methods.py"))
histogram_per_step, sparse = METHODS["histogram_per_step"], METHODS["sparse"]
BUDGET = MonitorBudget(epsilon=1.0, delta=1e-6, max_hits=4, tests=1_000_000, beta=0.01)


@pytest.mark.parametrize("total_hits", [1, 10, 1000])
def test_sparse_gets_the_least_noise_that_is_private(total_hits: int) -> None:
    scale = sparse(BUDGET, total_hits=total_hits).noise_scale / 2

    def delta(scale: float) -> float:
        return PureComposition(rounds=total_hits, round_epsilon=2 / scale).delta(1.0)

    assert delta(scale) <= 1e-6 < delta(scale * 0.999)
    textbook = Sparse(epsilon=1.0, max_hits=total_hits).noise_scale
    assert scale <= textbook * (1 + 1e-9)


@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
def test_the_histogram_gets_the_least_noise_that_is_private(neighbouring: str) -> None:
    budget = MonitorBudget(
        epsilon=1.0, delta=1e-6, max_hits=4, tests=1000, beta=0.01, items_per_step=3, neighbouring=neighbouring
    )
    sigma = histogram_per_step(budget, steps=50).noise_scale

    def delta(sigma: float) -> float:
        mu = math.sqrt(50 * 3 * (2 if neighbouring == "replace_one" else 1)) / sigma
        return float(special.ndtr(mu / 2 - 1 / mu) - math.e * special.ndtr(-mu / 2 - 1 / mu))

    assert delta(sigma) <= 1e-6 * (1 + 1e-6)
    assert delta(sigma * 0.999) > 1e-6


@pytest.mark.slow
def test_sparse_finds_what_it_is_said_to_find() -> None:
    """All goes well with probability 1 - beta; with half of the planned counts it does not."""
    tests, hits, runs, beta = 200, 4, 2000, 0.2
    budget = MonitorBudget(epsilon=1.0, delta=1e-6, max_hits=4, tests=tests, beta=beta)
    plan = sparse(budget, total_hits=hits)
    heavy = np.zeros(tests, dtype=bool)
    heavy[::60] = True
    assert heavy.sum() == hits

    def failures(count: int) -> int:
        gaps = np.where(heavy, count, 0) - plan.threshold
        engine = HiddenThreshold(scale=plan.noise_scale / 2, max_hits=hits, integer=True)
        failed = 0
        for run in range(runs):
            _, found = engine.test(Progress(), gaps, SeededNoise(17).derive(run, count))
            failed += found.tolist() != heavy.tolist()[: len(found)] or found.sum() < hits
        return failed

    spread = 6.2 * math.sqrt(runs * beta)  # false alarm below 1e-9
    assert failures(plan.detection_threshold) <= runs * beta + spread
    assert failures(plan.detection_threshold // 2) > runs * beta + spread
