"""What is said of counts where nobody has given a limit of people: what the usual one costs, and how to choose another.

All of it follows from public parameters and from what rows tell with noise, so that it may be published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privstream.mechanisms.accuracy import COMMON_STDDEV
from privstream.pipelines.questions.spec import loaded
from privstream.pipelines.sinks.left_out import UsedUp
from privstream.pipelines.terminal import printable
from privstream.transforms.methods import USUAL_CONTRIBUTIONS

LIMITS = ("max_contributions", "max_contributions_per_window", "renew_every")
"""Options with which this says nothing: limits, and periods in each of which they hold."""

QUARTER = USUAL_CONTRIBUTIONS // 4


def usual_limit_in_words(
    parameters: Mapping[str, Any], accuracy: Mapping[str, Any], told: UsedUp | None, places: Mapping[str, Any]
) -> str:
    """Say what the usual limit costs, how many people have used it up, and which command chooses another one.

    Empty where a limit was given, where nothing is told of who has used it up, and where people surely have.

    Privacy: post-processing of what is published.

    Args:
        parameters: public options of the run.
        accuracy: what is promised of it.
        told: of the people who have used up the limit; None if nothing is to be said of them.
        places: as those of `suggest_line`.
    """
    if told is None or not _nobody_gave(parameters) or told.surely(USUAL_CONTRIBUTIONS):
        return ""
    if all(parameters.get(name) is None for name in ("end", "windows")):
        return ""  # of input without an end nothing is suggested
    line = loaded("questions.command_lines.suggest_line")(parameters, places)
    return (
        f"{_costs(accuracy, parameters['delta'])} By the last window about {told.people:,} people (between "
        f"{told.lower:,} and {told.upper:,}) have used it up. Where hardly anybody does, a limit near what people have "
        f"makes counts better; where a few have much of everything, it leaves that out, and makes them worse. "
        f"This chooses one, for a small epsilon of its own: {printable(line)}"
    )


def planned_in_words(options: Mapping[str, Any], accuracy: Mapping[str, Any], contributions: int) -> str:
    """Say what the usual limit costs in a run that is planned; empty where a limit is given.

    Args:
        options: of the plan, by name.
        accuracy: what is promised of it.
        contributions: of a person, at most, in that run: fewer than usual of a short list.
    """
    if not _nobody_gave(options) or contributions != USUAL_CONTRIBUTIONS:
        return ""
    return (
        f"{_costs(accuracy, options['delta'])} Where all people have far fewer, a limit near that makes "
        "counts better: privstream suggest chooses one from the data, privately."
    )


def _nobody_gave(options: Mapping[str, Any]) -> bool:
    """Tell whether counts of people have the usual limit because none was given."""
    given = any(options.get(name) is not None for name in LIMITS)
    return options.get("unit") == "person" and not given


def _costs(accuracy: Mapping[str, Any], delta: float) -> str:
    """Say what the usual limit costs: noise is Gaussian where delta is above 0, and grows with its square root; less
    where counts have a part of it in common.
    """
    part = "half" if delta else "a quarter"
    shared = COMMON_STDDEV in accuracy
    return (
        f"max_contributions is not given, so that a person counts at most {USUAL_CONTRIBUTIONS} times, and every count "
        f"has noise for so many: a standard deviation of {accuracy['stddev']:.3g}."
        f"{'' if shared else f' With {QUARTER} it would be about {part} of that.'}"
    )
