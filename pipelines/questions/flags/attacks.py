"""An attack on flags: an event that brings a count to its threshold."""

from collections.abc import Iterable

from privstream.pipelines.audit.attack import SUSPECT, Attack, Seen, Sent, crowd, earliness, first_window
from privstream.transforms.events.domain import Domain

EPSILON = 4.0
WINDOWS, THRESHOLD = 3, 20


def nearly(seen: Seen) -> Iterable[Sent]:
    """Let others bring the count to one below its threshold in the first window."""
    return crowd(THRESHOLD - 1, "a") if seen.window == 0 else ()


ATTACKS = (
    Attack(
        name="a threshold that is nearly reached",
        text=f"the unit is an event. {THRESHOLD - 1} events of a category are there in the first of {WINDOWS} windows, "
        f"and its threshold is {THRESHOLD}. With D, there is one event more. The adversary sees when the flag goes up.",
        options={"epsilon": EPSILON, "thresholds": THRESHOLD, "domain": Domain(["a"])},
        control={"epsilon": 8 * EPSILON},
        others=nearly,
        suspect=first_window(Sent(SUSPECT, "a")),
        score=earliness(WINDOWS, lambda row: bool(row.raised)),
        windows=WINDOWS,
    ),
)
