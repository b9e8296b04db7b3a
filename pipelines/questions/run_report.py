"""What the counters of a run say: what was read, what could not be used and why, and whether anything could be."""

from __future__ import annotations

from collections.abc import Mapping

from privstream.pipelines.sinks.writers import COMPLETE

MUCH = 0.5
"""A run that leaves out a larger share of its records says so first."""

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


class RunReport:
    """What the counters of a run say of its input.

    Args:
        counters: of the run.
        unusable: counters of events that count in no answer, beside `OUTSIDE`, and how to say it.
        unanswered: counters of queries that were not answered, likewise.
        beyond: counters of what else was left out, likewise.
    """

    def __init__(
        self,
        counters: Mapping[str, int],
        *,
        unusable: Mapping[str, str],
        unanswered: Mapping[str, str],
        beyond: Mapping[str, str],
    ) -> None:
        self.counters = counters
        self.usable = counters.get("events_usable", 0)
        faults = {
            name.removeprefix(MALFORMED): number for name, number in counters.items() if name.startswith(MALFORMED)
        }
        self.records = counters.get("events_read", 0) + sum(faults.values()) - faults.get(AFTER_READING, 0)
        self._faults = [(number, _fault(code, number)) for code, number in faults.items() if number]
        self._unusable = self._counted(OUTSIDE | dict(unusable))
        self._unanswered = self._counted(unanswered)
        self._beyond = self._counted(beyond)

    @property
    def known(self) -> bool:
        """Whether there are counters: a job that was cancelled at its end has none."""
        return COMPLETE in self.counters

    def warning(self) -> list[str]:
        """Return a line if much of the input counts in no answer."""
        left_out = min(self.records, self.records - self.usable + self.counters.get("events_late", 0))
        if left_out <= MUCH * self.records:
            return []
        share = 100 * left_out // self.records
        return [f"WARNING: {left_out:,} of {self.records:,} records ({share}%) count in no answer"]

    def left_out(self, dead_letter: str | None) -> list[str]:
        """Return lines on what could not be used, and why."""
        letters = self.counters.get("events_malformed", 0) + self.counters.get("events_late", 0)
        lines = []
        if letters:
            kept = f"see {dead_letter}" if dead_letter else "--dead_letter PATH keeps them"
            why = f": {_listed(self._faults)}" if self._faults else ""
            lines = [f"{letters:,} record{'s' * (letters > 1)} could not be used, {kept}{why}"]
        return lines + [f"{number:,} {what}" for number, what in self._unusable + self._unanswered + self._beyond]

    def nothing_usable(self, published: int) -> str | None:
        """Say why nothing that was read could be used, the most frequent reason first; None if something could."""
        if not self.usable:
            reasons = _listed(self._faults + self._unusable) or "the input has no events"
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


def _listed(reasons: list[tuple[int, str]]) -> str:
    """Write reasons, the most frequent one first."""
    return ", ".join(f"{number:,} {what}" for number, what in sorted(reasons, key=lambda reason: -reason[0]))
