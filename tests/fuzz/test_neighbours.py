"""What one person may change of what is published is what the theorem allows: every question, small random inputs."""

import random
from collections import Counter
from typing import Any

import pytest
import runner_harness
from fuzz_meaning import Event
from fuzz_questions import ITEMS, QUESTIONS, SECOND, SPAN, START, STREAMS, Question, crowd, element, run_all
from fuzz_seeds import run_cases

NEIGHBOURS = 2
QUICK = ("heavy hitters",)
CASES = [
    *(pytest.param(name, "fn_api", marks=[] if name in QUICK else [pytest.mark.slow]) for name in QUESTIONS),
    *(pytest.param(name, "prism", marks=[pytest.mark.prism, pytest.mark.slow]) for name in QUICK),
]
"""On Prism one question is enough: that rows are the same on all runners is tested in test_runners_agree.py."""


def one_more(chance: random.Random, question: Question, events: list[Event], streams: bool) -> list[Event]:
    """Return what a neighbouring input has more: one event, of a new person or of one who is there."""
    user = chance.choice(["64", "63", events[0].user if events else "1"]) if question.points else "a stranger"
    if events and not question.points and chance.random() < 0.3:
        user = events[0].user
    second = chance.choice([0, SPAN - 1, chance.randrange(SPAN), -1, SPAN, -SPAN, 10 * SPAN])
    item = chance.choice([*ITEMS, "off the list", "\x00"])
    return [Event(user, item, (START + second) * SECOND, chance.choice([*STREAMS, "elsewhere"]) if streams else "")]


def check_structure(question: Question, one: list[tuple[Any, int]], other: list[tuple[Any, int]]) -> None:
    """Everything public about rows is the same: which there are, their stamps, their types."""
    assert all(len(types) <= 1 for types in kinds(one + other))
    if question.public is not None:
        listed = [sorted((*question.public(row), stamp) for row, stamp in rows) for rows in (one, other)]
        assert listed[0] == listed[1], f"published rows differ: {set(listed[0]) ^ set(listed[1])}"


def kinds(rows: list[tuple[Any, int]]) -> list[set[type]]:
    """Return the types that each field has, where it has a value."""
    return [set(map(type, values)) - {type(None)} for values in zip(*(row for row, _ in rows), strict=True)]


def check_stamps(rows: list[tuple[Any, int]]) -> None:
    """Rows are stamped with the last moment of their window."""
    for row, stamp in rows:
        assert not hasattr(row, "window_end") or stamp == row.window_end.micros - 1, f"stamp {stamp} of {row}"


def check_untouched(question: Question, one: list[Any], other: list[Any], more: list[Event]) -> None:
    """Rows that the events cannot have touched are the same."""
    left = [
        Counter(row for row in rows if all(question.untouched(row, event) for event in more)) for rows in (one, other)
    ]
    assert left[0] == left[1], f"{more} changed {list((left[0] - left[1]) + (left[1] - left[0]))[:4]}"


@pytest.mark.parametrize(("name", "runner"), CASES)
def test_one_person_changes_what_the_theorem_allows(name, runner, tmp_path):
    question = QUESTIONS[name]

    def check(chance, folder):
        streams = name != "queries" and chance.random() < 0.5
        made = question.make(chance, {"streams": STREAMS} if streams else {})
        events = [] if chance.random() < 0.2 else crowd(chance, question, streams)
        more = [one_more(chance, question, events, streams) for _ in range(NEIGHBOURS)]
        form = chance.choice(["row", "pair"])
        inputs = [[element(event, form) for event in [*events, *added]] for added in ([], *more)]
        for given in inputs:
            chance.shuffle(given)
        results = run_all(runner, question, made, inputs)
        alone = results.outputs["rows 0"]
        check_stamps(alone)
        for number, added in enumerate(more, 1):
            rows = results.outputs[f"rows {number}"]
            check_stamps(rows)
            check_structure(question, alone, rows)
            check_untouched(question, [row for row, _ in alone], [row for row, _ in rows], added)
            letters = len(results.elements(f"dead {number}")) - len(results.elements("dead 0"))
            assert letters in (0, 1), f"{added} became {letters} dead letters"

    runner_harness.require(runner)
    run_cases(f"neighbours {name} {runner}", 1 if runner == "prism" or name in QUICK else 2, check, tmp_path)
