"""What `privstream suggest` says of its rows: a table of limits, and the option to take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from privstream.mechanisms.limits.contributions import MOST_DROPPED
from privstream.pipelines.model.monitor import Monitor
from privstream.pipelines.promise import Promise
from privstream.transforms.row_types import LimitShare
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

SIDE_BY_SIDE, FEW = 8, 100  # so many scales of the noise are plain to see; people, for which an epsilon is named
WIDE = 0.5  # an interval that is wider says nothing

NOBODY = (
    "No limit is suggested: too few people can be seen, or a few have most. It takes some {least:,.0f} people with "
    "alike numbers; with --epsilon {epsilon:g} it would take 100."
)
MEANS = (
    "kept: share of all contributions (items in windows); {beyond} may have more than is in this table. noise: "
    "standard deviation of a count. in one, in all: people that an item needs in one window, or in each, to be found "
    "with an even chance."
)
FOUND = (
    "For epsilon {epsilon:g} and delta {delta:g}, the limit that keeps most in relation to noise, of those that, "
    "as far as can be seen, drop at most {most:.0%}:"
)


def rounded_up(value: float) -> float:
    """Return a number > 0 with three digits that is not smaller."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.3g}")


def below(rows: Sequence[LimitShare], promise: Promise, monitor: Monitor) -> Iterator[Any]:
    """Yield what a terminal shows: the table, and the option on a line of its own."""
    table = Table(box=SIMPLE_HEAD)
    for name in ("limit", "people", "kept", "noise", "in one", "in all"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.limit is not None:
            assert row.kept is not None and row.kept_lower is not None and row.kept_upper is not None
            interval = f"{row.kept:.0%} ({row.kept_lower:.0%} to {row.kept_upper:.0%})"
            table.add_row(
                f"{row.limit:,.15g}",
                f"{row.people:,} ({row.people_lower:,} to {row.people_upper:,})",
                interval if row.kept_upper - row.kept_lower <= WIDE else "not known",
                f"{row.stddev:,.3g}",
                f"{row.found_in_one:,}",
                f"{row.found_in_all:,}",
            )
    if table.row_count:
        yield table
        rest = rows[-1]
        yield Text(MEANS.format(beyond=f"{rest.people_lower:,} to {rest.people_upper:,} people"))
    option = next((row.suggested for row in rows if row.suggested), "")
    if option:
        (question,), delta = monitor.questions.values(), monitor.privacy.spent_delta
        epsilon = float(getattr(question, "for_epsilon", 1.0))
        yield Text(FOUND.format(epsilon=epsilon, delta=delta, most=MOST_DROPPED))
        yield Text(option)
    else:
        least = SIDE_BY_SIDE * promise.number("accuracy", "noise_scale")
        needed = rounded_up(promise.number("parameters", "epsilon") * least / FEW)
        yield Text(NOBODY.format(least=least, epsilon=needed))
