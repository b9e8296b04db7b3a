"""A case of the readers: a file of an honest majority, the same file with one record more, and what that means."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fuzz_meaning import Event, Rules
from fuzz_values import CANARY, SPAN, SPAN_START, UNITS, iso_time

NUMBERS = ["0.0", "1.0", "2.0", "3.0"]
ODD_NUMBERS = ["-1.5", "1e-320", "1e+300", "4294967296.0", "0.1"]
ODD_ITEMS = ["日本 é e\u0301", " ", "\\n", "a|b", "'", "x" * 30, "5", "\u202e", "a b"]


@dataclass
class Case:
    """Two files, of which the second has one record more.

    Attributes:
        honest: what the first file means.
        without, added: the files.
        meaning: what the record more means; None if it must become a dead letter.
        blank: the record is none, as a blank line is: it may be passed over without a dead letter.
        record: how it was written.
    """

    rules: Rules
    honest: list[Event]
    without: Path
    added: Path
    meaning: Event | None
    record: object
    blank: bool = False
    notes: list[str] = field(default_factory=list)

    def expected(self) -> list[Event]:
        """Return what must be read of the first file."""
        return self.honest if self.rules.reads_users else [event._replace(user="") for event in self.honest]

    def __str__(self) -> str:
        shown = repr(self.record)
        shown = shown if len(shown) < 400 else f"{shown[:400]}… ({len(shown)} characters)"
        about = f"{self.added.name}, {self.rules}, {' '.join(self.notes)}"
        return f"{about}\n  record: {shown}\n  meaning: {str(self.meaning)[:300]}"


class Crowd(NamedTuple):
    """Options, and what an honest majority does."""

    rules: Rules
    events: list[Event]


def random_rules(chance: random.Random, *, renamed: bool = True) -> Rules:
    """Return options: names of fields, streams, a unit of time, the longest text."""
    names: dict[str, str] = {}
    if renamed and chance.random() < 0.2:
        names = {"user": "who", "item": "what is it", "time": "när"}
    return Rules(
        stream=chance.choice(["", "", "stream", "place"]),
        time_unit=chance.choice([None, None, *UNITS]),
        max_item_bytes=chance.choice([1 << 14, 40]),
        reads_users=chance.random() < 0.85,
        numbers=chance.random() < 0.2,
        **names,
    )


def random_crowd(chance: random.Random, *, renamed: bool = True) -> Crowd:
    """Return options, and a few or many honest events."""
    rules = random_rules(chance, renamed=renamed)
    return Crowd(rules, honest_events(chance, rules, chance.choice([1, 3, 12, 40, 150])))


def honest_events(chance: random.Random, rules: Rules, n: int) -> list[Event]:
    """Return events of people who do nothing odd; times are whole seconds, so that every unit can say them."""
    items = NUMBERS if rules.numbers else [f"{CANARY} {number}" for number in range(4)]
    if chance.random() < 0.4:
        items = [*items, *(ODD_NUMBERS if rules.numbers else ODD_ITEMS)]
    return [
        Event(
            chance.choice([f"{CANARY}{number}", str(number)]),
            chance.choice(items),
            SPAN_START + chance.randrange(SPAN // 1_000_000) * 1_000_000,
            chance.choice(["north", "south"]) if rules.stream else "",
        )
        for number in range(n)
    ]


class TimeForm:
    """How the times of a file are written: all in one form, or each in its own."""

    def __init__(self, chance: random.Random, unit: str | None) -> None:
        self.chance, self.unit = chance, unit
        self.mixed = chance.random() < 0.3
        self.kind = self._kind()

    def _kind(self) -> str:
        return self.chance.choice(["plain", "free", *(["integer", "float"] if self.unit else [])])

    def number(self, micros: int) -> int:
        """Return whole seconds in the unit."""
        return micros * {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[self.unit or "s"] // 10**6

    def __call__(self, micros: int) -> str | int | float:
        """Write one time."""
        kind = self._kind() if self.mixed else self.kind
        if kind == "integer":
            return self.number(micros)
        if kind == "float" and self.unit != "ns":
            return float(self.number(micros))
        return iso_time(self.chance if kind == "free" else random.Random(0), micros)


def as_integers(honest: list[Event]) -> list[Event]:
    """Return events whose numbers are whole and small."""
    return [event._replace(item=repr(float(event.item) % 10 // 1)) for event in honest]


def place_of(chance: random.Random, n: int) -> int:
    """Return where the record more goes: first, last or in between."""
    return chance.choice([0, 0, n, n, chance.randint(0, n)])
