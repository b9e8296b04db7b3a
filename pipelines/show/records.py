"""What became of the rows of an input, in words: used, malformed, late, outside of what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SEVERAL = 3
"""Reasons, or questions, that a line names."""

FIELDS = {"user": "a user", "item": "an item", "value": "a value"}
RULES = {
    "missing": ("without {}", "--{}"),
    "type": ("with {} that is neither text nor an integer", "--{}"),
    "encoding": ("with {} that is not in the encoding of the file", "--encoding"),
    "long": ("with {} that is too long", "--{}"),
}
FAULTS = {
    f"{field}_{rule}": (words.format(name), option.format(field))
    for field, name in FIELDS.items()
    for rule, (words, option) in RULES.items()
} | {
    "time_missing": ("without a time", "--time"),
    "time_type": ("with a time that is neither a number nor text", "--time"),
    "time_syntax": ("with a time that is not ISO 8601", "--time-format"),
    "time_zone": ("with a time without an offset from UTC", "--time-zone"),
    "time_skipped": ("with a time that the clocks of the zone skip", "--time-zone"),
    "time_unit": ("with a time that is a plain number", "--time-unit"),
    "time_finite": ("with a time that is not finite", "--time"),
    "time_range": ("with a time outside of 1970 to 2200", "--time-unit"),
    "value_type": ("with a value that is not a number", "--decimal"),
    "value_finite": ("with a value that is not finite", "--value"),
    "where_type": ("with a field of another type than the condition needs", "--where"),
    "where_finite": ("with a number that is not finite in the condition", "--where"),
    "where_encoding": ("with a condition's field that is not in the encoding of the file", "--encoding"),
    "where_long": ("with a condition's field that is too long", "--where"),
    "point_type": ("with a point that is not a whole number", "--item"),
    "malformed_cell": ("with an error in a cell", "--dead-letter"),
    "malformed_line": ("in lines that break the rules of their format", "--input-format"),
    "long_line": ("in lines that are too long", "--input-format"),
    "carriage_return": ("with a carriage return that ends no line", "--quote"),
    "malformed_record": ("that are not one JSON object", "--dead-letter"),
}
"""Why a row is malformed, by how the name of its counter ends; and the option that mends or shows it."""

MALFORMED, AFTER_READING = "events_malformed_", "point_type"
"""Counters of malformed rows; the one whose rows have been counted as read."""

OUTSIDE = {
    "events_outside_run": ("outside of --start to --end", "--start, --end"),
    "events_outside_domain": ("with items outside of --domain or --rules", "--domain, --rules"),
}
UNUSED = {
    "events_of_other_values": "neither enter nor leave",
    "events_of_other_actions": "neither insert nor delete",
    "points_outside_universe": "outside of the universe",
    "events_filtered": "do not pass --where",
    "events_without_value": "without a value count as 0",
}
"""Other rows that are not used, or not as they are."""


class Records(NamedTuple):
    """What a run has done with the rows of its input, by its exact counters."""

    read: int
    used: int
    malformed: int
    late: int
    faults: Mapping[str, int]
    outside: Mapping[str, int]
    unused: Mapping[str, int]

    @classmethod
    def of(cls, counters: Mapping[str, int]) -> Records:
        """Take the counters of one question apart."""
        faults = {
            name.removeprefix(MALFORMED): number
            for name, number in counters.items()
            if name.startswith(MALFORMED) and number
        }
        read = counters.get("events_read", 0) + sum(faults.values()) - faults.get(AFTER_READING, 0)
        outside, unused = (
            {name: counters[name] for name in names if counters.get(name)} for names in (OUTSIDE, UNUSED)
        )
        malformed, late = counters.get("events_malformed", 0), counters.get("events_late", 0)
        used = max(0, counters.get("events_usable", 0) - late)  # an event may be late for several windows
        return cls(read, used, malformed, late, faults, outside, unused)

    @property
    def rest(self) -> dict[str, int]:
        """What became of rows that are neither used nor malformed, in words."""
        found = {"late": self.late} if self.late else {}
        found |= {OUTSIDE[name][0]: number for name, number in self.outside.items()}
        return found | {UNUSED[name]: number for name, number in self.unused.items()}

    def in_words(self, dead_letter: str | None = None) -> str:
        """Say how many rows were used, and what became of the others."""
        kept = f"see {dead_letter}" if dead_letter else "--dead-letter FILE keeps them"
        parts = [f"{self.malformed:,} malformed: {kept}"] if self.malformed else []
        parts += [f"{number:,} {what}" for what, number in sorted(self.rest.items(), key=lambda one: -one[1])[:SEVERAL]]
        rest = f" ({'; '.join(parts)})" if parts else ""
        return f"{self.used:,} of {self.read:,} rows used{rest}"

    def reasons(self, time_format: str | None = None) -> str:
        """Say why rows are not used, the most frequent reason first."""
        return listed({fault(code, time_format): number for code, number in self.faults.items()} | self.rest)


def fault(code: str, time_format: str | None = None) -> str:
    """Say what is wrong with rows, and which option is about it."""
    what, option = FAULTS.get(code, (f"refused as {code.replace('_', ' ')}", "--dead-letter"))
    if code == "time_syntax" and time_format is not None:
        what = f"with a time that is not of the form {time_format}"
    return f"{what} ({option})"


def listed(found: Mapping[str, int]) -> str:
    """Write numbers of things, the largest first."""
    return ", ".join(f"{number:,} {what}" for what, number in sorted(found.items(), key=lambda one: -one[1]))
