"""Attacks on flags: an event that brings a count above its threshold."""

from collections.abc import Iterable

from privstream.pipelines.questions.attack import SUSPECT, Attack, Seen, Sent, crowd, earliness, first_window
from privstream.transforms.events.domain import Domain

EPSILON = 1.0
THRESHOLD, WINDOWS = 20, 3
PUBLIC = {"epsilon": EPSILON, "thresholds": THRESHOLD, "domain": Domain(["a"])}


def nearly(seen: Seen) -> Iterable[Sent]:
    """Let others bring the count to one below its threshold in the first window."""
    return crowd(THRESHOLD - 1, "a") if seen.window == 0 else ()


def raised(windows: int) -> Attack:
    """Return an attack of so many windows."""
    return Attack(
        name="a threshold that is just reached" if windows == 1 else "a flag that waits",
        text=f"the unit is an event. A category with the threshold {THRESHOLD} has {THRESHOLD - 1} events in the first "
        f"of {windows} windows. With D, it has one more. The adversary sees when the flag goes up.",
        options=PUBLIC,
        control={"epsilon": (2 if windows == 1 else 4) * EPSILON},
        others=nearly,
        suspect=first_window(Sent(SUSPECT, "a")),
        score=earliness(windows, lambda row: bool(row.raised)),
        windows=windows,
    )


ATTACKS = (raised(1), raised(WINDOWS))
