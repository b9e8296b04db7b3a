"""`privstream suggest`: from events to private distributions of what people contribute, and the limits to use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privstream.pipelines.questions.spec import QuestionSpec

QUANTILES, TERMINAL = "quantiles", "-"

SPEC = QuestionSpec(
    word="suggest",
    summary="choose limits of people from data, privately",
    description="Chooses limits that nobody can guess, such as --max_contributions, from the data itself: publishes "
    "for a small part of the budget how much people contribute, and prints the limits whose predicted error is least "
    "in the run that follows, and what share of everything each limit keeps.",
    protected="a person over all that is read",
    known_as="histograms of contributions per user, for contribution bounds",
    transform="limits.suggest_limits.SuggestLimits",
    row="LimitShare",
    order=("measure", "limit"),
    title="rows about limits",
    published="limits_published",
    value="number, such as a price or a latency; without it none is read, but for quantiles (default: value)",
    values_with="values",
    hidden=("values",),
    prepare="suggest.question.prepare",
    settle="suggest.question.settle",
    below="suggest.answer.below",
    table=False,
    files=(),
    epilog="""\
The lines that begin with -- are options of the command that --question names, to be used for a run over the same
windows with --for_epsilon and --delta. This command spends --epsilon of the same people's budget, and so does each
repetition with other options or other data.
""",
)


def prepare(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether values are read."""
    return {"values": given.get("value_field") is not None}


def settle(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether values are read, as an option would say it.

    Raises:
        ValueError: the input has no end, or rows would go where they cannot be read again.
    """
    if "://" in str(given.get("output")) or given.get("copy") is not None:
        raise ValueError("--output must be a file of this machine, or -, and copy must not be given")
    if given.get("watch") is not None or str(given.get("input")).startswith("kafka://"):
        raise ValueError("watch must not be given, and --input must have an end: limits are chosen from all of it")
    return {"values": True if given.get("value_field") is not None or given["question"] == QUANTILES else None}
