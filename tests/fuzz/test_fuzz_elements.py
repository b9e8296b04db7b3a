"""Elements that are no events: their pipeline is refused when it is made, or each is a dead letter and others count."""

import logging
from collections import Counter

import pytest
from fuzz_elements import hostile_element, rows_of
from fuzz_questions import ITEMS, QUESTIONS, crowd, element, run_all
from fuzz_seeds import run_cases
from fuzz_values import CANARY
from test_neighbours import check_structure

BRANCHES = 4
QUICK = ("heavy hitters",)
REFUSED = (TypeError, ValueError)


def shown(given: object) -> str:
    """Show an element, also one that cannot be shown."""
    try:
        return f"{type(given).__name__} {given!r}"[:600]
    except Exception:
        return type(given).__name__


def check_branch(question, honest, rows, letters, given):
    """One element more is dead letters, or what one person's events may change."""
    check_structure(question, honest, rows)
    assert letters <= max(rows_of(given), 1), f"{letters} dead letters of {shown(given)}"
    kept = [Counter(row for row, _ in each if question.public or row.item != ITEMS[0]) for each in (honest, rows)]
    if letters == rows_of(given) or not question.public:
        assert kept[0] == kept[1], (
            f"others' rows are changed by {shown(given)}: {list((kept[0] - kept[1]) + (kept[1] - kept[0]))[:3]}"
        )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in ("heavy hitters", "histogram", "cardinality", "ranges")
    ],
)
def test_no_element_decides_for_others(name, tmp_path, caplog):
    question = QUESTIONS[name]

    def check(chance, folder):
        made = question.make(chance, {})
        events = [element(event) for event in crowd(chance, question, False)]
        given = [hostile_element(chance) for _ in range(BRANCHES)]
        inputs = [events, *([*events[: len(events) // 2], one, *events[len(events) // 2 :]] for one in given)]
        with caplog.at_level(logging.WARNING):
            results = run_all("fn_api", question, made, inputs)
        assert CANARY not in caplog.text, f"an element is shown in the log: {caplog.text[:500]}"
        honest = results.outputs["rows 0"]
        assert not results.elements("dead 0")
        for number, one in enumerate(given, 1):
            check_branch(
                question, honest, results.outputs[f"rows {number}"], len(results.elements(f"dead {number}")), one
            )

    run_cases(f"elements {name}", 1 if name in QUICK else 2, check, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in ("heavy hitters", "cardinality")
    ],
)
def test_a_collection_of_wrong_elements_is_refused_or_set_aside(name, tmp_path):
    question = QUESTIONS[name]

    def check(chance, folder):
        one = hostile_element(chance)
        try:
            results = run_all("fn_api", question, question.make(chance, {}), [[one] * 3], typed=chance.random() < 0.5)
        except REFUSED as error:
            assert CANARY not in str(error), f"an error quotes an element: {error}"
            assert "\n" not in str(error), f"an error is not one line: {error}"
            return
        assert len(results.elements("dead 0")) <= 3 * max(rows_of(one), 1)

    run_cases(f"collections {name}", 2 if name in QUICK else 6, check, tmp_path)
