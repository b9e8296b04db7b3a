"""`privstream plan`, and the standard methods it compares with."""

import json
import math
from typing import Any

import numpy as np
import pytest
from privstream.mechanisms import SeededNoise, Sparse
from privstream.mechanisms.monitor.calibration import MonitorBudget
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.sparse_vector.hidden_threshold import HiddenThreshold, Progress
from privstream.mechanisms.sparse_vector.sparse import PureComposition
from privstream.pipelines import cli
from privstream.pipelines.plan.standard_methods import histogram_per_step, sparse
from privstream.transforms import ShiftingHeavyHitters
from scipy import special

BASE = ["plan", "heavy-hitters", "--epsilon", "1", "--delta", "1e-6", "--max_hits", "4", "--count_share", "0"]
BUDGET = MonitorBudget(epsilon=1.0, delta=1e-6, max_hits=4, tests=1_000_000, beta=0.01)


def ask(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """Return the JSON answer; options that come later count."""
    assert cli.main([*BASE, *options, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    answer: dict[str, Any] = json.loads(shown.out)
    return answer


@pytest.mark.parametrize(
    ("name", "noise_scale", "detection_threshold", "tolerance"),
    [("clock", 15.0, 330, 0.0), ("target_charging", 21.5, 794, 0.002), ("paper", 49_487, 1.82e6, 0.005)],
)
def test_the_published_table(
    name: str, noise_scale: float, detection_threshold: float, tolerance: float, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(capsys, "--tests", "1000000", "--beta", "0.01")[name]
    assert found["noise_scale"] == pytest.approx(noise_scale, rel=4e-3)
    assert found["detection_threshold"] == pytest.approx(detection_threshold, rel=tolerance)
    assert 0 < found["threshold"] < found["detection_threshold"]
    assert found["count_stddev"] is None
    assert (found["guarantee"]["epsilon"], found["guarantee"]["delta"]) == (1.0, 1e-6)
    assert found["guarantee"]["unit"] == "one person over the whole run"


@pytest.mark.parametrize(("steps", "tests", "expected"), [("1000", "1000000", 340), ("1000", "1000000000", 345)])
def test_the_published_table_for_unknown_items(
    steps: str, tests: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask(capsys, "--horizon", steps, "--tests", tests, "--beta", "0.01")
    assert answer["clock"]["detection_threshold"] == expected
    assert answer["clock"]["guarantee"]["horizon"] == 1000
    assert any("takes part in at most 1,000 tests" in limit for limit in answer["clock"]["guarantee"]["limits"])


@pytest.mark.parametrize("calibration", ["clock", "target_charging", "paper"])
@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
def test_the_plan_is_what_a_run_promises(
    calibration: str, neighbouring: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--horizon", "24", "--items_per_step", "3", "--neighbouring", neighbouring, "--streams_per_person", "2"]
    assert cli.main([*BASE[:-2], *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[calibration]
    hitters = ShiftingHeavyHitters(
        epsilon=1.0,
        delta=1e-6,
        max_hits=4,
        window=60,
        horizon=24,
        items_per_step=3,
        neighbouring=neighbouring,
        streams_per_person=2,
        calibration=calibration,
        noise=KeyedNoise(b"0123456789abcdef"),
    )
    assert found["detection_threshold"] == hitters.detection_threshold
    assert found["count_stddev"] == pytest.approx(hitters.monitor.count_stddev)


def test_what_cannot_be_is_null_and_the_rest_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "--epsilon", "500")
    assert (
        answer["paper"]["noise_scale"] is answer["paper"]["detection_threshold"] is answer["paper"]["guarantee"] is None
    )
    assert "inner noise scale >= 2" in answer["paper"]["reason"]
    assert answer["clock"]["detection_threshold"] < 20
    unbounded = ask(capsys, "--horizon", "unbounded")
    assert unbounded["clock"]["detection_threshold"] > 100
    for missing in (unbounded["target_charging"], unbounded["paper"], *unbounded["baselines"].values()):
        assert missing["detection_threshold"] is None
        assert missing["reason"].startswith("horizon must be a number of steps")


def test_defaults_of_the_standard_methods(capsys: pytest.CaptureFixture[str]) -> None:
    known = ask(capsys)["baselines"]
    assert (known["histogram_per_step"]["steps"], known["sparse"]["total_hits"]) == (1000, 1000)
    unknown = ask(capsys, "--horizon", "30")["baselines"]
    assert (unknown["histogram_per_step"]["steps"], unknown["sparse"]["total_hits"]) == (30, 30)
    chosen = ask(capsys, "--horizon", "30", "--steps", "40", "--total_hits", "7")["baselines"]
    assert (chosen["histogram_per_step"]["steps"], chosen["sparse"]["total_hits"]) == (40, 7)


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*BASE, "--beta", "0.01"]) == 0
    shown = capsys.readouterr().out
    for cell in ("clock", "330", "target charging", "paper", "49,487", "sparse vector", "histogram per step"):
        assert cell in shown
    assert "Best: clock, which finds every item of 330 people, with probability 0.99" in shown
    assert "Sharpest limit: a person is counted in at most 4 hits" in shown
    assert "raise what clock finds from 330 to 512 people" in shown
    assert cli.main([*BASE, "--horizon", "3"]) == 0
    assert "Best: histogram per step" in capsys.readouterr().out, "three steps do not need a monitor"
    assert cli.main([*BASE, "--horizon", "unbounded"]) == 0
    assert "they rise slowly" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "nan"], "epsilon must be finite and > 0, got nan"),
        (["--epsilon", "-1"], "epsilon must be finite and > 0, got -1.0"),
        (["--delta", "0"], "delta must be in (0, 1), got 0.0"),
        (["--delta", "1"], "delta must be in (0, 1), got 1.0"),
        (["--max_hits", "0"], "max_hits must be >= 1, got 0"),
        (["--beta", "1"], "beta must be in (0, 1), got 1.0"),
        (["--tests", "0"], "tests must be >= 1, got 0"),
        (["--horizon", "0"], "horizon must be >= 1, got 0"),
        (["--steps", "0"], "steps must be >= 1, got 0"),
        (["--total_hits", "0"], "total_hits must be >= 1, got 0"),
        (["--items_per_step", "0", "--horizon", "3"], "items_per_step must be >= 1, got 0"),
        (["--count_share", "1"], "count_share must be in [0, 1), got 1.0"),
        (["--neighbouring", "near"], "neighbouring must be one of add_remove, replace_one, got 'near'"),
    ],
)
def test_numbers_out_of_range_are_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*BASE, *options, "--json"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"privstream plan heavy-hitters: error: {message}\n")


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
