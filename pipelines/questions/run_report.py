"""What the counters of a run say: what was read, what could not be used and why, and whether anything could be."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from privstream.mechanisms.accuracy import Coverage
from privstream.pipelines.questions.spec import NOT_ASKED, Excess, QuestionSpec
from privstream.pipelines.sinks.row_files import ALIKE, COMPLETE
from privstream.pipelines.sources.event_files import LONG_RECORDS, MANY_LINES
from privstream.pipelines.terminal import NOTE, WARNING
from privstream.transforms.events.parameters import PARTS

OUTSIDE = {
    "events_outside_run": "events outside of the windows of the run",
    "events_of_other_streams": "events of streams that are not in --streams",
    "events_outside_domain": "events of items that are not in --domain",
}
"""Counters of events that count in no answer, in any command."""

RULES = {
    "type": "with {} that is neither text nor an integer",
    "encoding": "with {} that is no text in the encoding of the file (see --encoding)",
    "long": "with {} that is too long",
}
"""How a user, an item or a stream may break a rule."""

FIELDS = {"user": "a user", "item": "an item", "stream": "a stream", "value": "a value"}
FAULTS = {f"{field}_{rule}": words.format(FIELDS[field]) for field in FIELDS for rule, words in RULES.items()}
FAULTS |= {f"{field}_missing": f"without {words} in --{field}_field" for field, words in FIELDS.items()}
FAULTS |= {
    "time_missing": "without a time in --time_field",
    "time_type": "with a time that is neither a number nor text",
    "time_syntax": "with a time that is not ISO 8601 text such as 2030-01-31T12:00:00Z (give its form with "
    "--time_format)",
    "time_zone": "with a time that does not say how far it is from UTC (give --time_zone, such as Europe/Berlin)",
    "time_skipped": "with a time in an hour that the clocks of --time_zone leave out",
    "time_unit": "with a time that is a plain number (give its unit with --time_unit)",
    "time_finite": "with a time that is not finite",
    "time_range": "with a time outside of 1970 to 2200 (give the unit of plain numbers with --time_unit)",
    "value_type": "with a value that is not a number (see --decimal)",
    "value_finite": "with a value that is not finite",
    "where_type": "with a field of another kind than --where needs",
    "where_finite": "with a field of --where that is not finite",
    "where_encoding": "with a field of --where that is no text in the encoding of the file (see --encoding)",
    "where_long": "with a field of --where that is too long",
    "point_type": "whose point is not a whole number",
    "malformed_line": "in lines that break the rules of their format",
    "long_line": "in lines that are too long",
    "carriage_return": "with a carriage return that ends no line",
    "malformed_record": "that are not one JSON object",
}
"""Why a record is a dead letter: how the name of its counter ends, and how to say it."""

FILTERED = {"events_filtered": "events do not pass --where"}
"""Counters of events that were read to be passed over, which are no part of the records, and how to say it."""

AS_READ = {
    "events_without_value": "events without a value count with 0",
    "values_rounded": "values were rounded to whole numbers of --value_unit",
    LONG_RECORDS: f"records of CSV have more than {MANY_LINES} lines: a quotation mark may have made one of many "
    "(--quote none takes quotes as text)",
}
"""Counters of values that are not read as they are written, and how to say it."""

ONE = (
    (r"^(\w+)ies\b", r"\1y"),
    (r"^(\w+)s\b(?! of CSV)", r"\1"),
    (r"^(run of tests) have\b", r"\1 has"),
    (r"\bdo not\b", "does not"),
    (r"\bwere\b", "was"),
    (r"\bcount with 0$", "counts with 0"),
    (r"\bneither (\w+) nor (\w+)$", r"neither \1s nor \2s"),
)
"""How words about several things become those about one."""

AFTER_READING = "point_type"
"""A fault that is found in records that have been read, and counted as such."""

MALFORMED = "events_malformed_"


CHOOSE = ("start", "end", "streams", "domain")
"""Options that say which events are asked for."""

MUCH = 0.05
"""A run warns if such a share, or a larger one, of what its answers are about counts in none of them."""

MOST = 0.5
"""A run notes that it was not asked about such a share of its records, or a larger one."""

NAMED = 0.01
"""A warning names the limits that leave out such a share, or a larger one."""


class Share(NamedTuple):
    """How much is left out by limits that follow each other and are set by the same options.

    Attributes:
        left_out: so many contributions.
        came: of so many.
        at_first, at_last: the share in the first quarter of the windows, and in the last; None if it is not known.
        lasting: whether one of the limits is used up in the course of the run.
    """

    left_out: int
    came: int
    at_first: float | None
    at_last: float | None
    lasting: bool

    @classmethod
    def of(cls, limits: Sequence[Excess], counters: Mapping[str, int]) -> Share:
        """Return what the counters of some limits say: what came to the last one had been left by the others."""
        numbers = []
        for part in PARTS:
            *earlier, last = (counters.get(limit.left_out + part, 0) for limit in limits)
            came = sum(earlier) + counters.get(limits[-1].came + part, 0)
            numbers.append((sum(earlier) + last, max(came, sum(earlier) + last)))
        (left_out, came), *quarters = numbers
        at_first, at_last = (left / of if of else None for left, of in quarters)
        return cls(left_out, came, at_first, at_last, any(limit.lasting for limit in limits))

    @property
    def share(self) -> float:
        """The share of all."""
        return self.left_out / self.came if self.came else 0.0

    @property
    def largest(self) -> float:
        """The share of all or, where the limit is used up, that of the last quarter of the windows, if it is larger."""
        return max(self.share, self.at_last or 0.0) if self.lasting else self.share

    @property
    def rises(self) -> bool:
        """Whether so much more is left out at the end, since the limit is used up, that it can look like a decline."""
        return self.lasting and (self.at_last or 0.0) - (self.at_first or 0.0) >= MUCH

    def __str__(self) -> str:
        """Write it."""
        if not self.lasting or self.at_last is None:
            return f"{self.left_out:,} of {self.came:,}"
        first, last = _percent(self.at_first or 0.0), _percent(self.at_last)
        return f"{self.left_out:,} of {self.came:,}; {first} in the first quarter of the windows, {last} in the last"


class RunReport:
    """What the counters of a run say of its input.

    Args:
        counters: of the run.
        spec: the question.
        coverage: what counts, by public parameters.
        given: options of the run, by name.
    """

    def __init__(
        self, counters: Mapping[str, int], spec: QuestionSpec, coverage: Coverage, given: Mapping[str, Any]
    ) -> None:
        self.counters = counters
        self.usable = counters.get("events_usable", 0)
        faults = {
            name.removeprefix(MALFORMED): number for name, number in counters.items() if name.startswith(MALFORMED)
        }
        self.records = counters.get("events_read", 0) + sum(faults.values()) - faults.get(AFTER_READING, 0)
        self._spec, self._coverage, self._given = spec, coverage, given
        self._faults = [(number, fault(code, number, given)) for code, number in faults.items() if number]
        self._outside = self._counted(OUTSIDE | dict(spec.unusable))
        self._unanswered = self._counted(spec.unanswered)
        self._limits = [limit for limit in spec.limits if counters.get(limit.left_out)]
        self._clipped = [limit for limit in spec.clipped if counters.get(limit.left_out)]
        whole = [limit for limit in (*self._limits, *self._clipped) if not limit.amounts and not self._much(limit)]
        beyond = {limit.left_out: limit.text for limit in whole} | dict(spec.beyond)
        self._beyond = self._counted(beyond)

    def _much(self, limit: Excess) -> bool:
        """Tell whether a limit leaves out so much that there is a warning of it."""
        return self.counters[limit.left_out] >= MUCH * self.counters.get(limit.came, 0)

    @property
    def known(self) -> bool:
        """Whether there are counters: a job that was cancelled at its end has none."""
        return COMPLETE in self.counters

    def warnings(self) -> list[str]:
        """Return a line for each reason for which published numbers leave out much of what they are about."""
        return [f"{WARNING}{text}" for text in (*self._of_records(), *self._of_limits(), *self._of_values())]

    def notes(self) -> list[str]:
        """Return a line if options leave out most records: numbers are not about them, but that may be a mistake.

        Items that no rule names are none of it.
        """
        chosen = [(number, what) for number, what in self._outside if what in OUTSIDE.values()]
        lost = sum(number for number, _ in chosen)
        if not self.records or lost < MOST * self.records:
            return []
        share = _percent(min(1.0, lost / self.records))
        options = ", ".join(f"--{name}" for name in CHOOSE if name in self._spec.signature.arguments)
        return [f"{NOTE}{share} {NOT_ASKED}: {listed(chosen)}. Is that meant? See {options}."]

    def _of_records(self) -> Iterator[str]:
        """Warn of records that could not be used."""
        late = self.counters.get("events_late", 0)
        lost = min(self.records, self.counters.get("events_malformed", 0) + late)
        if self.records and lost >= MUCH * self.records:
            why = listed([*self._faults, *([(late, "later than --allowed_lateness")] if late else [])])
            share = f"{_percent(lost / self.records)} of the records ({lost:,} of {self.records:,})"
            yield f"{share} could not be used, and no interval holds what they would add: {why}."

    def _of_limits(self) -> Iterator[str]:
        """Warn of limits that bind, of those that are about the same whole together."""
        for of in dict.fromkeys(limit.of for limit in self._limits):
            groups: dict[str, list[Excess]] = {}
            for limit in self._limits:
                if limit.of == of:
                    groups.setdefault(" or ".join(f"--{name}" for name in self._options(limit)), []).append(limit)
            shares = {options: Share.of(limits, self.counters) for options, limits in groups.items()}
            lost = 1 - math.prod(1 - share.share for share in shares.values())
            if max([lost, *(share.largest for share in shares.values())]) >= MUCH:
                instead = next((limit.instead for limit in groups.get("", [])), "")
                yield self._limited(of, lost, {options or instead: share for options, share in shares.items()})

    def _limited(self, of: str, lost: float, shares: Mapping[str, Share]) -> str:
        """Say what limits drop, by the options that set them."""
        named = {options: share for options, share in shares.items() if share.largest >= NAMED}
        looks = f", {self._coverage.later}" if any(share.rises for share in named.values()) else ""
        options = dict.fromkeys(each for of_limits in named for each in of_limits.split(" or "))
        larger = " or ".join(each for each in options if each.startswith("--"))
        cost = f" A larger {larger} drops less, for more noise: choose it by what you know of people." * bool(larger)
        # Since the start, an item that never counts is dropped in each window.
        since_start = self._given.get("over") == "start"
        repeats = since_start or any(limit.repeats and limit.of == of for limit in self._limits)
        by = "; ".join(f"{options} ({share})" for options, share in named.items())
        return (
            f"limits drop {'up to ' * repeats}{_percent(lost)} of all {of}{looks}: {by}. What is published is "
            f"about the rest.{cost}"
        )

    def _options(self, limit: Excess) -> Sequence[str]:
        """Return the options that set a limit: of those that it has, the ones that can leave something out."""
        binding = {limit.option for limit in self._coverage.limits}
        return [name for name in limit.options if name in binding] or limit.options

    def _of_values(self) -> Iterator[str]:
        """Warn of values that are not published as they are."""
        alike = self.counters.get(ALIKE, 0)
        if alike:
            yield (
                f"{alike:,} of the published names differ from another one only in large and small letters, or in how "
                "accents are written: --fold_case, --normalize make one item of them."
            )
        rounded = self.counters.get("values_rounded", 0)
        if rounded and rounded >= MUCH * self.records:
            share = f"{_percent(rounded / max(rounded, self.records))} ({rounded:,} of {self.records:,})"
            unit = self._given.get("value_unit") or 1
            yield (
                f"{share}: values were rounded to whole numbers of {unit:g}, and sums and intervals are of these. "
                "A smaller --value_unit rounds less."
            )
        for limit in self._clipped:
            number, came = self.counters[limit.left_out], self.counters.get(limit.came, 0)
            if self._much(limit):
                share = _percent(number / max(number, came))
                of = " " if limit.amounts else f" ({number:,} of {came:,}): "
                yield f"{share}{of}{limit.text}. {limit.instead}"

    def left_out(self, dead_letter: str | None) -> list[str]:
        """Return lines on what could not be used, and why."""
        letters = self.counters.get("events_malformed", 0) + self.counters.get("events_late", 0)
        lines = []
        if letters:
            kept = f"see {dead_letter}" if dead_letter else "--dead_letter PATH keeps them"
            why = f": {listed(self._faults)}" if self._faults else ""
            lines = [f"{letters:,} record{'s' * (letters > 1)} could not be used, {kept}{why}"]
        lines += [f"{numbered(number, what)} ({_percent(number / self.records)})" for number, what in self._outside]
        return lines + [
            numbered(number, what)
            for number, what in self._counted(FILTERED) + self._counted(AS_READ) + self._unanswered + self._beyond
        ]

    def nothing_usable(self, published: int) -> str | None:
        """Say why nothing that was read could be used, the most frequent reason first; None if something could."""
        if not self.usable:
            reasons = listed(self._faults + self._outside + self._counted(FILTERED)) or "the input has no events"
            return f"no event could be used, and of such input the rows are noise alone: {reasons}"
        if self._unanswered and not published:
            return f"no query could be answered: {listed(self._unanswered)}"
        return None

    def _counted(self, words: Mapping[str, str]) -> list[tuple[int, str]]:
        """Return numbers that are not 0, and what they are numbers of."""
        return [(self.counters[name], what) for name, what in words.items() if self.counters.get(name)]


def fault(code: str, number: int, given: Mapping[str, Any]) -> str:
    """Say what is wrong with some records, by the options of the run."""
    if code == "time_syntax" and given.get("time_format") is not None:
        forms = given["time_format"].replace("|", " or ")
        return f"record{'s' * (number > 1)} with a time that is not of the form {forms}"
    return f"record{'s' * (number > 1)} {FAULTS.get(code, 'refused as ' + code.replace('_', ' '))}"


def _percent(share: float) -> str:
    """Return a share in percent; small ones with one digit more."""
    return f"{100 * share:.0f}%" if share >= 0.095 or not share else f"{100 * share:.1g}%"


def listed(reasons: list[tuple[int, str]]) -> str:
    """Write reasons, the most frequent one first."""
    return ", ".join(numbered(number, what) for number, what in sorted(reasons, key=lambda reason: -reason[0]))


def numbered(number: int, what: str) -> str:
    """Write a number of things, and what is said of them; the words are those of several."""
    if number == 1:
        for several, one in ONE:
            what = re.sub(several, one, what, count=1)
    return f"{number:,} {what}"
