"""A file of questions with one budget: how it is read, shared out, and planned."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from privstream.mechanisms.guarantee_records import guarantee_record, read_guarantee
from privstream.mechanisms.privacy.accounting import GaussianCurve, PureDp, SlackCurve, largest_shift
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit
from privstream.pipelines.cli import main
from privstream.pipelines.command import UsageError
from privstream.pipelines.monitor.calibration import Asked, calibrate, common_unit, rounded_down
from privstream.pipelines.monitor.monitor_file import read_monitor
from privstream.pipelines.yaml_file import read_document
from privstream.transforms.counts.keyed_counts import CountsParameters

HEAD = """\
data: {input: clicks.csv, user: customer, item: page, time: ts}
window: 1h
start: 2026-01-01
end: 2026-01-01T04:00
max_contributions: 4
privacy: {epsilon: 1, delta: 1e-6}
questions:
"""
PAGES = "  pages: {question: counts, share: 3}\n"
LATENCY = "  latency: {question: quantiles, value: ms, low: 1, high: 60000, quantiles: [0.5, 0.99]}\n"


def monitor(folder: Path, text: str) -> str:
    """Write a file; return its path."""
    path = folder / "monitor.yaml"
    path.write_text(text)
    return str(path)


def test_delta_follows_from_the_number_of_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = monitor(tmp_path, HEAD.replace("delta: 1e-6", "people: 10000") + PAGES)
    assert read_monitor(given, str(tmp_path)).delta == 1e-6
    assert "delta is 1e-06, 1 / (100 x 10,000), from the number of people" in capsys.readouterr().err


def test_values_are_read_by_yaml_1_2(tmp_path: Path) -> None:
    """Not by YAML 1.1, to which `no` is false and 1e-6 a text."""
    read = read_document(monitor(tmp_path, "a: 1e-6\nb: no\nc: 2026-01-01\nd: 010\ne: true\nf: ~\ng: .inf\nh: 1_0\n"))
    assert read.content == {
        "a": 1e-6,
        "b": "no",
        "c": "2026-01-01",
        "d": 10,
        "e": True,
        "f": None,
        "g": math.inf,
        "h": "1_0",
    }
    assert read.lines[("e",)] == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + PAGES.replace("share", "shrae"), "line 8: questions.pages.shrae: unknown key; did you mean `share`?"),
        (HEAD + PAGES + PAGES, "line 9: questions.pages stands twice, first in line 8"),
        (HEAD + PAGES.replace("share: 3", "share: 0"), "line 8: questions.pages.share: must be finite and > 0, got 0"),
        (HEAD + PAGES.replace("share: 3", "share: .nan"), "share: must be finite and > 0, got nan"),
        (HEAD + PAGES.replace("counts", "count"), "line 8: questions.pages.question: must be one of heavy-hitters"),
        (HEAD + PAGES.replace("share: 3", "epsilon: 3"), "questions.pages.epsilon: unknown key"),
        (HEAD.replace("window: 1h", "windw: 1h") + PAGES, "line 2: windw: unknown key; did you mean `window`?"),
        (HEAD.replace("1e-6", "no") + PAGES, "line 6: privacy.delta: must be a number, got str"),
        (HEAD.replace("1e-6", "9" * 400) + PAGES, "line 6: privacy.delta: must be finite as a floating-point"),
        (HEAD.replace("1e-6", "1e-6, people: 9") + PAGES, "line 6: privacy.people: must not be given with delta"),
        (
            HEAD.replace("delta: 1e-6", "people: yes") + PAGES,
            "line 6: privacy.people: must be a whole number from 1 to",
        ),
        (HEAD.replace("epsilon: 1", "epsilon: -1") + PAGES, "line 6: privacy: epsilon must be finite and > 0"),
        (HEAD.replace("questions:\n", "questions: {}\n"), "questions: must have at least one question"),
        ("version: 0\n" + HEAD + PAGES, "line 1: version: must be 1, the version of such files that this release of"),
        ("version: 2\nnew: 1\n" + HEAD + PAGES, "line 1: version: must be 1"),
        ("data: [\n", "must be YAML"),
        ("- a\n", "must be a mapping of keys to values"),
        (HEAD + PAGES.replace("share: 3", "share: x"), "must be a number, got str"),
        (
            HEAD.replace("max_contributions: 4", "max_contributions: auto") + PAGES,
            "line 5: max_contributions: must be",
        ),
        (
            HEAD + PAGES.replace("share: 3", "max_contributions: many"),
            "line 8: questions.pages.max_contributions: must be a whole number, got 'many'",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, message: str) -> None:
    """Each error names the key, its line and the rule."""
    with pytest.raises(UsageError, match=r"monitor\.yaml") as raised:
        read_monitor(monitor(tmp_path, text), str(tmp_path))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + LATENCY.replace("0.99", "1.99"),
            "line 8: questions.latency.quantiles: quantiles must be in (0, 1), got 1.99",
        ),
        (
            HEAD + LATENCY.replace("low: 1", "low: 9e9"),
            "line 8: questions.latency.high: high must be > low, got 60000.0",
        ),
        (
            HEAD.replace("delta: 1e-6", "delta: 0") + PAGES,
            "line 8: questions.pages: delta must be > 0 unless the list of items is public, got 0 (its share of the bu",
        ),
        (
            HEAD.replace("start: 2026-01-01", "start: 2026-02-31") + PAGES,
            "line 3: start: start must be a day that there is, got '2026-02-31' (for pages)",
        ),
    ],
)
def test_what_a_question_refuses_at_its_share_is_named_with_its_line(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such rules are known to its transform alone."""
    assert main(["plan", monitor(tmp_path, text)]) == 2
    assert f"monitor.yaml, {message}" in capsys.readouterr().err


def test_questions_take_what_holds_for_all(tmp_path: Path) -> None:
    """Fields and windows stand once, and a question may say otherwise."""
    found = read_monitor(
        monitor(tmp_path, HEAD + PAGES + LATENCY.replace("}", ", max_contributions: 2}")), str(tmp_path)
    )
    pages, latency = found.questions
    assert (pages.options.user_field, pages.options.item_field, pages.options.time_field) == ("customer", "page", "ts")
    assert (pages.options.max_contributions, latency.options.max_contributions) == (4, 2)
    assert latency.options.quantiles == [0.5, 0.99] and latency.options.value_field == "ms"


def test_limits_of_a_person_are_not_for_questions_about_events(tmp_path: Path) -> None:
    """A limit that holds for all is passed over by a question that protects events, as histogram does by default."""
    events = "  all: {question: histogram, domain: [a, b]}\n  each: {question: counts, unit: event}\n"
    found = read_monitor(monitor(tmp_path, HEAD + PAGES + events), str(tmp_path)).questions
    assert [each.options.max_contributions for each in found] == [4, None, None]
    with pytest.raises(ValueError, match="max_contributions must not be given"):
        wrong = "  each: {question: counts, unit: event, max_contributions: 2}\n"
        read_monitor(monitor(tmp_path, HEAD + wrong), str(tmp_path)).questions[0].transform(1.0, 1e-7)


def test_units_that_cannot_share_a_delta_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A change by a person that is told as one event more and one less costs more delta than there is."""
    head = HEAD.replace("max_contributions: 4\n", "")
    one = PAGES.replace("share: 3", "unit: event")
    other = "  size: {question: counts, max_contributions: 2}\n"
    assert main(["plan", monitor(tmp_path, head + one + other)]) == 2
    assert "unit must be the same in questions that share a delta" in capsys.readouterr().err


def test_plan_keeps_to_the_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", monitor(tmp_path, HEAD + PAGES + LATENCY), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    pages, latency = plan["questions"]["pages"], plan["questions"]["latency"]
    assert plan["guarantee"]["epsilon"] == 1 and plan["guarantee"]["delta"] == 1e-6
    assert pages["epsilon"] + latency["epsilon"] > 1 > pages["epsilon"] > latency["epsilon"]


class Gaussian:
    """A transform with Gaussian noise, and nothing else."""

    def __init__(self, epsilon: float, delta: float) -> None:
        self.shift = largest_shift(epsilon, delta)
        self.guarantee = PrivacyGuarantee(
            unit=PERSON,
            neighbouring="add_remove",
            epsilon=epsilon,
            delta=delta,
            curve=GaussianCurve(shift=self.shift),
        )


class Pure:
    """A transform with noise of a pure guarantee."""

    def __init__(self, epsilon: float, delta: float, unit: PrivacyUnit = PERSON) -> None:
        self.guarantee = PrivacyGuarantee(
            unit=unit, neighbouring="add_remove", epsilon=epsilon, delta=0.0, curve=PureDp(epsilon)
        )


def test_a_monitor_says_of_each_question_for_how_many_windows_it_holds() -> None:
    """Not the least of them for all: a question of one long window is beside others of many."""

    def lasting(epsilon: float, delta: float, horizon: int) -> Gaussian:
        made = Gaussian(epsilon, delta)
        made.guarantee = replace(made.guarantee, horizon=horizon, limits=("Once.",))
        return made

    week, year = partial(lasting, horizon=52), partial(lasting, horizon=1)
    same = calibrate([Asked("a", 1.0, week), Asked("b", 1.0, week)], 1.0, 1e-6).guarantee
    assert same.horizon == 52 and same.limits == ("Each question: Once.",)
    mixed = calibrate([Asked("a", 1.0, week), Asked("b", 1.0, year)], 1.0, 1e-6).guarantee
    held = ("a: It holds for at most 52 windows.", "b: It holds for at most 1 window.")
    assert mixed.horizon is None and mixed.limits == (held[0], held[1], "Each question: Once.")
    assert all(sentence in mixed.paragraph() for sentence in held)


def test_five_equal_questions_have_little_more_noise_than_one() -> None:
    """Gaussian parts add up by squares: the square root of five, where dividing epsilon costs nearly five."""
    one = calibrate([Asked("a", 1.0, Gaussian)], 1.0, 1e-6)
    five = calibrate([Asked(name, 1.0, Gaussian) for name in "abcde"], 1.0, 1e-6)
    alone = one.questions[0].transform.shift
    assert all(2.2 < alone / each.transform.shift <= 2.3 for each in five.questions)
    shift = math.sqrt(sum(each.transform.shift**2 for each in five.questions))
    assert 0.99 < GaussianCurve(shift=shift).epsilon(1e-6) <= 1.0


def test_parts_that_are_not_gaussian_are_within_the_total() -> None:
    """The whole is checked by privacy loss distributions; with a delta of 0 epsilons add up."""
    mixed = calibrate([Asked("a", 2.0, Gaussian), Asked("b", 1.0, Pure)], 1.0, 1e-6)
    curve = mixed.guarantee.curve
    assert curve is not None and 0.97 < curve.epsilon(1e-6) <= 1.0
    pure = calibrate([Asked("a", 2.0, Pure), Asked("b", 1.0, Pure)], 1.0, 0.0)
    assert [each.epsilon for each in pure.questions] == [0.666666, 0.333333]
    assert pure.guarantee.curve == PureDp(0.666666 + 0.333333)


class Slack:
    """A transform with Gaussian noise, and a slack of half of its delta."""

    def __init__(self, epsilon: float, delta: float) -> None:
        curve = SlackCurve(curve=GaussianCurve(shift=largest_shift(epsilon, delta / 2)), slack=0.499 * delta)
        self.guarantee = PrivacyGuarantee(
            unit=PERSON, neighbouring="add_remove", epsilon=epsilon, delta=delta, curve=curve
        )


@pytest.mark.parametrize("epsilon", [1.0, 20.0, 100.0])
def test_the_curve_of_a_monitor_promises_its_total(epsilon: float) -> None:
    """Where epsilons are large, slack costs more in the composition than in the sum: the ledger must be readable."""
    found = calibrate([Asked("a", 1.0, Slack), Asked("b", 2.0, Slack)], epsilon, 1e-6).guarantee
    assert read_guarantee(guarantee_record(found)) == found


def test_epsilons_add_up_for_the_unit_of_all_questions() -> None:
    """An event is two changes of a person: what protects a person counts twice, and the total holds all the same."""
    found = calibrate([Asked("a", 1.0, Pure), Asked("b", 1.0, partial(Pure, unit=EVENT))], 1.0, 0.0)
    person, event = (each.epsilon for each in found.questions)
    assert found.guarantee.unit == EVENT and 0.99 < 2 * person + event <= 1
    assert found.guarantee.epsilon == 2 * person + event and found.guarantee.curve == PureDp(2 * person + event)


def test_one_question_alone_has_digits_that_a_command_line_can_repeat() -> None:
    """No printed number is above the total."""
    (alone,) = calibrate([Asked("a", 1.0, Gaussian)], 1.2345678, 1.2345678e-6).questions
    assert (alone.epsilon, alone.delta) == (1.23456, 1.23456e-6)
    with pytest.raises(ValueError, match="delta of privacy must be smaller"):
        calibrate([Asked("a", 1.0, Pure), Asked("b", 1.0, Gaussian)], 0.01, 0.05)


@pytest.mark.parametrize(
    ("windows", "field", "message"),
    [
        ("end: 2026-01-01T04:00", "user: session", "questions.b: user must be customer, as in a"),
        ("renew_every: 4h", "user: session", "questions.b: user must be customer, as in a"),
        ("renew_every: 4h", "time: created", "questions.b: time must be ts, as in a"),
        ("end: 2026-01-01T04:00", "time: created", None),
    ],
)
def test_questions_mean_the_same_by_a_person(tmp_path, capsys, windows, field, message):
    """Promises about customers and about sessions are not about one person."""
    counts = "question: counts"
    text = HEAD.replace("end: 2026-01-01T04:00", windows) + f"  a: {{{counts}}}\n  b: {{{counts}, {field}}}\n"
    assert main(["plan", monitor(tmp_path, text)]) == (0 if message is None else 2)
    assert (message or "") in capsys.readouterr().err


def test_units_must_have_one_in_common() -> None:
    """Who protects a person protects an event; of queries nothing follows."""
    person = Pure(0.5, 0.0).guarantee
    event = PrivacyGuarantee(unit=EVENT, neighbouring="add_remove", epsilon=1.0, delta=0.0)
    assert common_unit({"a": person, "b": person})[0] == PERSON
    assert common_unit({"a": person, "b": event})[0] == EVENT


def test_budgets_are_rounded_down() -> None:
    """To what a command line can repeat."""
    assert [rounded_down(value) for value in (0.123456789, 1.0, 1.8e-7, 99.99999999)] == [
        0.123456,
        1.0,
        1.8e-7,
        99.9999,
    ]


@pytest.mark.parametrize("question", ["heavy-hitters, max_per_window: 2", "top-k, top: 3"])
def test_questions_whose_command_needs_a_delta_get_one(tmp_path: Path, question: str) -> None:
    """Their share of the total; the file names none."""
    text = (
        HEAD.replace("max_contributions: 4\n", "").replace("end: 2026-01-01T04:00", "renew_every: 4h")
        + f"  found: {{question: {question}}}\n"
    )
    (found,) = read_monitor(monitor(tmp_path, text), str(tmp_path)).questions
    assert found.transform(0.5, 1e-7).guarantee.delta == 1e-7


def test_transforms_that_differ_in_fields_alone_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty questions take as much work as one of each kind."""
    fields = ("user: customer", "item: country", "item: [country, page]", "where: ms > 3")
    lines = [f"  q{number}: {{question: counts, {fields[number % 4]}}}\n" for number in range(20)]
    few, many = (read_monitor(monitor(tmp_path, HEAD + "".join(some)), str(tmp_path)) for some in (lines[:1], lines))
    made: list[object] = []
    make = CountsParameters.__init__
    monkeypatch.setattr(CountsParameters, "__init__", lambda self, **given: (made.append(self), make(self, **given))[1])
    for each in (*many.questions, *few.questions):
        each.transform(0.123, 1.23e-7)
    assert len(made) == 1
    few.questions[0].transform(0.124, 1.23e-7)
    assert len(made) == 2
