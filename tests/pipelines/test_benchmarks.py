"""Benchmarks can be started, gates say what falls, and mutants are found by the text of their lines."""

import importlib
import math
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("[!_]*.py"))


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gates")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_can_be_started(script: str) -> None:
    found = subprocess.run([sys.executable, BENCHMARKS / script, "--help"], capture_output=True, check=True)
    assert b"--quick" in found.stdout


@pytest.mark.slow
def test_the_comparison_with_duckdb_runs(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "cores.py", "--quick", f"--results={tmp_path}"]
    subprocess.run(command, capture_output=True, check=True)
    assert (tmp_path / "cores.csv").read_text().count("\n") == 3


def test_a_gate_falls_where_a_figure_is_beyond_an_end_or_there_is_none(gates: ModuleType) -> None:
    gate = gates.Gate("a row", "5", 1.0, 2.0, unit="")
    assert [gate.kept(figure) for figure in (0.9, 1.0, 2.0, 2.1, math.nan)] == [False, True, True, False, False]
    name = next(one.row for one in gates.GATES if one.low)
    text, fell = gates.table({name: -math.inf})
    assert fell == 1 and "**no**" in text


def test_each_row_has_one_gate(gates: ModuleType) -> None:
    rows = [gate.row for gate in gates.GATES]
    assert len(rows) == len(set(rows))


def test_a_measure_runs_and_has_gates_for_all_its_figures(gates: ModuleType) -> None:
    assert gates.fallen(1).keys() | gates.weights(1).keys() <= {gate.row for gate in gates.GATES}


def test_a_mutant_is_one_line_that_stands_there_once() -> None:
    mutated = runpy.run_path(str(ROOT / "tests" / "mutants.py"))["mutated"]
    assert mutated("if x:\n    a = 1\nb = 1\n", "a = 1", "a = 2") == "if x:\n    a = 2\nb = 1\n"
    assert mutated("a = 1\na = 1\n", "a = 1", "a = 2") is None and mutated("b = 1\n", "a = 1", "a = 2") is None
