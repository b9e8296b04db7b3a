"""What the counters of a run say: what was read, what could not be used and why, and whether anything could be."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from privstream.pipelines.questions.spec import Excess, QuestionSpec
from privstream.pipelines.sinks.writers import COMPLETE
from privstream.pipelines.terminal import WARNING

MUCH = 0.05
"""A run warns if such a share, or a larger one, of what its answers are about counts in none of them."""

OUTSIDE = {
    "events_outside_run": "events outside of the windows of the run",
    "events_of_other_streams": "events of streams that are not in --streams",
    "events_outside_domain": "events of items that are not in --domain",
}
"""Counters of events that count in no answer, in any command."""

RULES = {
    "type": "with {} that is neither text nor an integer",
    "encoding": "with {} that is not valid UTF-8",
    "long": "with {} that is too long",
}
"""How a user, an item or a stream may break a rule."""

FIELDS = {"user": "a user", "item": "an item", "stream": "a stream", "value": "a value"}
FAULTS = {f"{field}_{rule}": words.format(FIELDS[field]) for field in FIELDS for rule, words in RULES.items()}
FAULTS |= {f"{field}_missing": f"without {words} in --{field}_field" for field, words in FIELDS.items()}
FAULTS |= {
    "time_missing": "without a time in --time_field",
    "time_type": "with a time that is neither a number nor text",
    "time_syntax": "with a time that is not ISO 8601 text such as 2030-01-31T12:00:00Z",
    "time_unit": "with a time that is a plain number (give its unit with --time_unit)",
    "time_finite": "with a time that is not finite",
    "time_range": "with a time outside of 1970 to 2200 (give the unit of plain numbers with --time_unit)",
    "value_type": "with a value that is not a number",
    "value_finite": "with a value that is not finite",
    "value_whole": "with a value that is not a whole number",
    "point_type": "whose point is not a whole number",
    "malformed_line": "in lines that break the rules of their format",
    "long_line": "in lines that are too long",
    "carriage_return": "with a carriage return that ends no line",
    "malformed_record": "that are not one JSON object",
    "cut_short": "in files that end early",
    "damaged_block": "in blocks that cannot be decoded",
}
"""Why a record is a dead letter: how the name of its counter ends, and how to say it."""

AFTER_READING = "point_type"
"""A fault that is found in records that have been read, and counted as such."""

MALFORMED = "events_malformed_"


NOT_BY_THIS = "choose them by what you know of people: this number is exact, and no guarantee covers a choice by it"
"""What who reads a warning of limits must know."""

MOST = 0.5
"""A run warns if it was not asked about such a share of its records, or a larger one."""

NAMED = 0.01
"""A warning names the limits that leave out such a share, or a larger one."""


class RunReport:
    """What the counters of a run say of its input.

    Args:
        counters: of the run.
        spec: the question.
        given: options that were given, which a warning may name.
    """

    def __init__(self, counters: Mapping[str, int], spec: QuestionSpec, given: Collection[str] = ()) -> None:
        self.counters = counters
        self.usable = counters.get("events_usable", 0)
        faults = {
            name.removeprefix(MALFORMED): number for name, number in counters.items() if name.startswith(MALFORMED)
        }
        self.records = counters.get("events_read", 0) + sum(faults.values()) - faults.get(AFTER_READING, 0)
        self._word, self._given = spec.word, given
        self._faults = [(number, _fault(code, number)) for code, number in faults.items() if number]
        self._outside = self._counted(OUTSIDE | dict(spec.unusable))
        self._unanswered = self._counted(spec.unanswered)
        self._limits = [limit for limit in spec.limits if counters.get(limit.left_out)]
        self._clipped = [limit for limit in spec.clipped if counters.get(limit.left_out)]
        beyond = {limit.left_out: limit.text for limit in (*self._limits, *self._clipped)} | dict(spec.beyond)
        self._beyond = self._counted(beyond)

    @property
    def known(self) -> bool:
        """Whether there are counters: a job that was cancelled at its end has none."""
        return COMPLETE in self.counters

    def warnings(self) -> list[str]:
        """Return a line for each reason for which numbers that are published leave out much of what they are about.

        Events of other times, streams or items than options ask for are no part of that: only where most records are
        such events is there a line, since that may be a mistake.
        """
        texts = (*self._of_records(), *self._of_choice(), *self._of_limits(), *self._of_values())
        return [f"{WARNING}{text}" for text in texts]

    def _of_records(self) -> Iterator[str]:
        """Warn of records that could not be used."""
        late = self.counters.get("events_late", 0)
        lost = min(self.records, self.counters.get("events_malformed", 0) + late)
        if self.records and lost >= MUCH * self.records:
            why = _listed([*self._faults, *([(late, "later than --allowed_lateness")] if late else [])])
            yield (
                f"{lost:,} of {self.records:,} records ({_percent(lost / self.records)}) could not be used, and no "
                f"interval holds what they would add: {why}"
            )

    def _of_choice(self) -> Iterator[str]:
        """Warn of options that leave out most records; not of items that no rule names, which cannot be a mistake."""
        chosen = [(number, what) for number, what in self._outside if what in OUTSIDE.values()]
        lost = sum(number for number, _ in chosen)
        if self.records and lost >= MOST * self.records:
            yield (
                f"{lost:,} of {self.records:,} records ({_percent(lost / self.records)}) are not asked for: "
                f"{_listed(chosen)}. If that is not meant, change --start, --end, --horizon, --streams or --domain."
            )

    def _of_limits(self) -> Iterator[str]:
        """Warn of limits that bind."""
        shares = [(limit, self.counters[limit.left_out], self.counters.get(limit.came, 0)) for limit in self._limits]
        kept = math.prod(1 - left_out / max(left_out, came) for _, left_out, came in shares)
        if 1 - kept < MUCH:
            return
        named = [(limit, left_out, came) for limit, left_out, came in shares if left_out >= NAMED * came]
        by = "; ".join(f"{self._set_by(limit)} ({left_out:,} of {came:,})" for limit, left_out, came in named)
        later = any(limit.lasting for limit, _, _ in named)
        plan = any(limit.options for limit, _, _ in named)
        yield (
            f"limits have left out {_percent(1 - kept)} of all contributions: {by}. Published numbers and their "
            f"intervals are about the other {_percent(kept)}, not about all"
            f"{'; later windows may miss more, which can look like a decline' if later else ''}."
            f"{f' privstream plan {self._word} says what other limits cost; {NOT_BY_THIS}.' if plan else ''}"
        )

    def _set_by(self, limit: Excess) -> str:
        """Return the options that set a limit, those that were given if there are any."""
        options = [name for name in limit.options if name in self._given] or limit.options
        return " and ".join(f"--{name}" for name in options) or limit.instead

    def _of_values(self) -> Iterator[str]:
        """Warn of limits of values that change many of them."""
        for limit in self._clipped:
            number, came = self.counters[limit.left_out], self.counters.get(limit.came, 0)
            if number >= MUCH * came:
                yield f"{_percent(number / max(number, came))} of {came:,}: {number:,} {limit.text}"

    def left_out(self, dead_letter: str | None) -> list[str]:
        """Return lines on what could not be used, and why."""
        letters = self.counters.get("events_malformed", 0) + self.counters.get("events_late", 0)
        lines = []
        if letters:
            kept = f"see {dead_letter}" if dead_letter else "--dead_letter PATH keeps them"
            why = f": {_listed(self._faults)}" if self._faults else ""
            lines = [f"{letters:,} record{'s' * (letters > 1)} could not be used, {kept}{why}"]
        lines += [f"{number:,} {what} ({_percent(number / self.records)})" for number, what in self._outside]
        return lines + [f"{number:,} {what}" for number, what in self._unanswered + self._beyond]

    def nothing_usable(self, published: int) -> str | None:
        """Say why nothing that was read could be used, the most frequent reason first; None if something could."""
        if not self.usable:
            reasons = _listed(self._faults + self._outside) or "the input has no events"
            return f"no event could be used, and of such input the rows are noise alone: {reasons}"
        if self._unanswered and not published:
            return f"no query could be answered: {_listed(self._unanswered)}"
        return None

    def _counted(self, words: Mapping[str, str]) -> list[tuple[int, str]]:
        """Return numbers that are not 0, and what they are numbers of."""
        return [(self.counters[name], what) for name, what in words.items() if self.counters.get(name)]


def _fault(code: str, number: int) -> str:
    """Say what is wrong with some records."""
    return f"record{'s' * (number > 1)} {FAULTS.get(code, 'refused as ' + code.replace('_', ' '))}"


def _percent(share: float) -> str:
    """Return a share in percent; small ones with one digit more."""
    return f"{100 * share:.0f}%" if share >= 0.1 or not share else f"{100 * share:.1g}%"


def _listed(reasons: list[tuple[int, str]]) -> str:
    """Write reasons, the most frequent one first."""
    return ", ".join(f"{number:,} {what}" for number, what in sorted(reasons, key=lambda reason: -reason[0]))
