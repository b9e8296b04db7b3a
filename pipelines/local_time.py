"""How times are read and shown: by the clocks of the time zone of a run, which are UTC where it has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from privstream.transforms.reading.fields import EPOCH, TIME_TEXT, BrokenRuleError
from privstream.transforms.reading.times import TimeForm, read_micros
from privstream.transforms.timing.steps import MICROS, Calendar, read_zone


@dataclass(frozen=True)
class Clocks:
    """The clocks by which times are shown; `window` has those of a calendar in words, such as "1 week"."""

    zone: str = "UTC"
    window: str = ""

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Clocks:
        """Return the clocks of a run from the parameters in its guarantee file; UTC where these name no zone."""
        zone, window = parameters.get("time_zone"), parameters.get("window")
        try:
            calendar = Calendar.parse(window) if isinstance(window, str) else None
            name = calendar.zone if calendar is not None and calendar.zone != "UTC" else zone
            name = name if isinstance(name, str) else "UTC"
            read_zone(name)
        except ValueError:  # whatever somebody has written into the file, times can be shown
            return cls()
        return cls(name, "" if calendar is None else str(calendar).partition(" in ")[0])

    def local(self, micros: float) -> datetime:
        """Return a moment, in microseconds since 1970, by these clocks."""
        moment = EPOCH + timedelta(microseconds=round(micros))
        try:
            return moment.astimezone(read_zone(self.zone))
        except OverflowError:  # at an end of all time
            return moment

    def moment(self, micros: float) -> str:
        """Return a moment in words, to the minute or, where needed, finer, with the abbreviation of the clocks.

        >>> Clocks().moment(0), Clocks("Europe/Berlin").moment(0)
        ('1970-01-01 00:00 UTC', '1970-01-01 01:00 CET')
        """
        local = self.local(micros)
        text = local.replace(tzinfo=None).isoformat(" ")
        return f"{text.removesuffix(':00') if local.second == 0 and not local.microsecond else text} {local:%Z}"

    def at_midnight(self, moments: Iterable[int]) -> bool:
        """Tell whether all moments are beginnings of days."""
        return all(self.local(micros).time() == time() for micros in moments)


def moment(name: str, value: Any, zone: str = "UTC") -> float:
    """Return seconds since 1970 UTC."""
    if isinstance(value, date):
        raise TypeError(f"{name} must be {TIME_TEXT} in quotes, or seconds since 1970, got a {type(value).__name__}")
    try:
        return read_micros(name, value, TimeForm(unit="s", zone=zone)) / MICROS
    except BrokenRuleError as error:
        raise ValueError(f"{error}, got {value!r}") from None  # it is public, as those of events are not
