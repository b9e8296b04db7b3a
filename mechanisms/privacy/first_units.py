"""Units as the first version of guarantee records had them: in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from privstream.mechanisms import checks
from privstream.mechanisms.durations import SECOND
from privstream.mechanisms.privacy.units import EVENT, PERSON, PrivacyUnit

IN_WINDOW = "one person in one window"
WORDS = {
    "one event": EVENT,
    "one row over the whole run": PrivacyUnit(what="row"),
    "one person over the whole run": PERSON,
    "one person over all releases": PERSON,
    "one update (insertion or deletion of one point) over the whole run": EVENT,
    "one update (insertion of one point) over the whole run": EVENT,
}
UPDATES = re.compile(r"one person who makes at most \d+ updates \(insertion( or deletion)? of one point each\) over .*")
CHANGE = re.compile(
    r"one change (?:of the data )?that moves no (query|utility|measurement)(?: of the whole run)? by more than "
    r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(, and moves all of them in the same direction)?"
)


def first_version_unit(words: Any, parameters: Mapping[str, Any]) -> PrivacyUnit:
    """Return the unit that the first version described so.

    Args:
        words: what it wrote.
        parameters: of the command, which say how long a window is, in seconds.

    Raises:
        ValueError, TypeError: it wrote no such thing.
    """
    if not isinstance(words, str):
        raise TypeError(f"unit must be a text in version 1 of a guarantee, got {type(words).__name__}")
    if words in WORDS:
        return WORDS[words]
    if words == IN_WINDOW:
        return PrivacyUnit(what="person", window=round(checks.positive("window", parameters.get("window")) * SECOND))
    if UPDATES.fullmatch(words):
        return PERSON
    if change := CHANGE.fullmatch(words):
        what, bound, direction = change.groups()
        return PrivacyUnit(what=what, bound=float(bound), same_direction=direction is not None)
    raise ValueError(f"unit must be one that version 1 of a guarantee has, got {words!r}")
