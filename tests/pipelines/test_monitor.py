"""A file of questions with one budget: how it is read, shared out, and planned."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from privstream.mechanisms.privacy.accounting import GaussianCurve, PureDp, SlackCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_record, read_guarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines.cli import main
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.run.plan import Plan, calibrate
from privstream.pipelines.yaml_file import read_document

HEAD = """\
data: {input: clicks.csv, user: customer, item: page, time: ts}
windows: {window: 1h, start: 2026-01-01, end: 2026-01-01T04:00}
privacy: {epsilon: 1, delta: 1e-6}
questions:
"""
PAGES = "  pages: {question: counts, share: 3, max_contributions: 4}\n"
LATENCY = (
    "  latency: {question: quantiles, value: ms, low: 1, high: 60000, quantiles: [0.5, 0.99], max_contributions: 4}\n"
)


def monitor(folder: Path, text: str) -> str:
    path = folder / "monitor.yaml"
    path.write_text(text)
    return str(path)


def test_values_are_read_by_yaml_1_2(tmp_path: Path) -> None:
    """Not by YAML 1.1, to which `no` is false and 1e-6 a text."""
    read = read_document(monitor(tmp_path, "a: 1e-6\nb: no\nc: 2026-01-01\nd: 010\ne: true\nf: ~\ng: .inf\nh: 1_0\n"))
    assert [*read.content.values()] == [1e-6, "no", "2026-01-01", 10, True, None, math.inf, "1_0"]
    assert read.lines[("e",)] == 5


def test_plan_keeps_to_the_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", monitor(tmp_path, HEAD + PAGES + LATENCY), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert main(["plan", monitor(tmp_path, HEAD + PAGES + LATENCY)]) == 0
    assert f"{round(plan['questions']['pages']['accuracy']['margin']):,} people" in capsys.readouterr().out
    pages, latency = plan["questions"]["pages"], plan["questions"]["latency"]
    assert plan["guarantee"]["epsilon"] == 1 and plan["guarantee"]["delta"] == 1e-6
    assert pages["epsilon"] + latency["epsilon"] > 1 > pages["epsilon"] > latency["epsilon"]


MISTAKES = {
    "questions:\n  pages: {question: count}": "line 5: questions.pages.question: must be one of 'counts', ",
    "questions:\n  pages: {question: counts, max_contributons: 4}": "questions.pages.max_contributons: unknown key",
    "questions:\n  Pages: {question: counts}": "line 5: questions.Pages: names must be small letters",
    "questions:\n  a: {question: counts, share: 0}": "line 5: questions.a.share: must be greater than 0, got 0",
    "questions:\n  a: {question: counts, windows: {window: 7x}}": "questions.a.windows.window: must be a number of sec",
    "questions:\n  a: {question: counts, max_per_window: 200}": "questions.a.max_per_window: must be < 100",
    "questions:\n  a: {question: counts}\nwindwos: {}": "line 6: windwos: unknown key; did you mean `windows`?",
    "questions:\n  a: {question: counts, user: session}\n  b: {question: counts}": "questions.b.user: must be session",
    "questions:\n  a: {question: alerts, rules: [{name: x, at_least: 3, items: tea}]}": "must be a list of texts",
    "questions:\n  a: {question: counts, unit: event}\n  b: {question: counts, max_contributions: 2}": (
        "questions must protect the same unit: a protects one event; b protects one person"
    ),
    "questions: {}": "line 4: questions: must have at least 1 item",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_named_with_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert main(["plan", monitor(tmp_path, HEAD.replace("questions:\n", "") + text + "\n")]) == 2
    assert MISTAKES[text] in capsys.readouterr().err


def test_a_question_may_have_windows_and_fields_of_its_own(tmp_path: Path) -> None:
    more = "  days: {question: counts, item: [country, page], where: ms > 3, windows: {window: 2h}}\n"
    read = Monitor.from_file(monitor(tmp_path, HEAD.replace("ts}", "ts, where: ms < 9}") + PAGES + more))
    plan = Plan.of(read)
    fields, own = plan.fields, plan.given
    assert (fields["pages"].item, fields["days"].item, fields["days"].user) == ("page", "country,page", "customer")
    assert (fields["pages"].where, fields["days"].where) == ("ms < 9", "(ms < 9) and (ms > 3)")
    assert [own[name]["window"] for name in ("pages", "days")] == [3600, 7200]
    assert own["days"]["end"] == own["pages"]["end"]
    assert [each.transform.steps.count for each in plan.questions] == [4, 2]


class Gaussian:
    """A transform with Gaussian noise, and nothing else."""

    def __init__(self, epsilon: float, delta: float) -> None:
        self.shift = largest_shift(epsilon, delta)
        curve = GaussianCurve(shift=self.shift)
        self.guarantee = PrivacyGuarantee(unit=PERSON, epsilon=epsilon, delta=delta, curve=curve)


class Pure:
    """A transform with noise of a pure guarantee."""

    def __init__(self, epsilon: float, delta: float) -> None:
        self.guarantee = PrivacyGuarantee(unit=PERSON, epsilon=epsilon, delta=0.0, curve=PureDp(epsilon))


def test_a_monitor_says_of_each_question_for_how_many_windows_it_holds() -> None:
    """Not the least of them for all: a question of one long window is beside others of many."""

    def lasting(epsilon: float, delta: float, horizon: int) -> Gaussian:
        made = Gaussian(epsilon, delta)
        made.guarantee = replace(made.guarantee, horizon=horizon, limits=("Once.",))
        return made

    week, year = partial(lasting, horizon=52), partial(lasting, horizon=1)
    _, same = calibrate({"a": (1.0, week), "b": (1.0, week)}, 1.0, 1e-6)
    assert same.horizon == 52 and same.limits == ("Each question: Once.",)
    _, mixed = calibrate({"a": (1.0, week), "b": (1.0, year)}, 1.0, 1e-6)
    held = ("a: It holds for at most 52 windows.", "b: It holds for at most 1 window.")
    assert mixed.horizon is None and mixed.limits == ("Each question: Once.", *held)
    assert all(sentence in mixed.paragraph() for sentence in held)


def test_five_equal_questions_have_little_more_noise_than_one() -> None:
    """Gaussian parts add up by squares: the square root of five, where dividing epsilon costs nearly five."""
    (one,), _ = calibrate({"a": (1.0, Gaussian)}, 1.0, 1e-6)
    five, _ = calibrate(dict.fromkeys("abcde", (1.0, Gaussian)), 1.0, 1e-6)
    alone = one.transform.shift
    assert all(2.2 < alone / each.transform.shift <= 2.3 for each in five)
    shift = math.sqrt(sum(each.transform.shift**2 for each in five))
    assert 0.99 < GaussianCurve(shift=shift).epsilon(1e-6) <= 1.0


def test_parts_that_are_not_gaussian_are_within_the_total() -> None:
    """The whole is checked by privacy loss distributions; with a delta of 0 epsilons add up."""
    _, mixed = calibrate({"a": (2.0, Gaussian), "b": (1.0, Pure)}, 1.0, 1e-6)
    curve = mixed.curve
    assert curve is not None and 0.97 < curve.epsilon(1e-6) <= 1.0
    pure, guarantee = calibrate({"a": (2.0, Pure), "b": (1.0, Pure)}, 1.0, 0.0)
    assert [each.epsilon for each in pure] == [0.666666, 0.333333]
    assert guarantee.curve == PureDp(0.666666 + 0.333333)


class Slack:
    """A transform with Gaussian noise, and a slack of half of its delta."""

    def __init__(self, epsilon: float, delta: float) -> None:
        curve = SlackCurve(curve=GaussianCurve(shift=largest_shift(epsilon, delta / 2)), slack=0.499 * delta)
        self.guarantee = PrivacyGuarantee(unit=PERSON, epsilon=epsilon, delta=delta, curve=curve)


@pytest.mark.parametrize("epsilon", [1.0, 20.0, 100.0])
def test_the_curve_of_a_monitor_promises_its_total(epsilon: float) -> None:
    """Where epsilons are large, slack costs more in the composition than in the sum: the ledger must be readable."""
    _, found = calibrate({"a": (1.0, Slack), "b": (2.0, Slack)}, epsilon, 1e-6)
    assert read_guarantee(guarantee_record(found)) == found


def test_init_writes_a_monitor_to_fill_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text('who,"when, local",what\nu,2030-01-01T00:00:00,tea\n')
    assert main(["init", "a.csv"]) == 0
    text = (tmp_path / "monitor.yaml").read_text()
    assert '# Fields of the input: "who", "when, local", "what"\n' in text
    assert main(["plan", "monitor.yaml"]) == 2 and "FILL_IN" in capsys.readouterr().err
    for value in ("who", "when, local", "what", "2030-01-01", "2030-02-01", "30"):
        text = text.replace("FILL_IN", f'"{value}"' if "," in value else value, 1)
    (tmp_path / "monitor.yaml").write_text(text)
    assert main(["plan", "monitor.yaml"]) == 0
    assert main(["init", "a.csv"]) == 2 and "monitor.yaml" in capsys.readouterr().err
