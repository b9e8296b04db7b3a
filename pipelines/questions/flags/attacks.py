"""An attack on flags: an event that brings a count above its threshold."""

from collections.abc import Iterable

from privstream.pipelines.questions.attack import SUSPECT, Attack, Seen, Sent, crowd, earliness, first_window
from privstream.transforms.events.domain import Domain

EPSILON = 1.0
WINDOWS, THRESHOLD = 3, 20


def just(seen: Seen) -> Iterable[Sent]:
    """Let others bring the count to its threshold in the first window."""
    return crowd(THRESHOLD, "a") if seen.window == 0 else ()


ATTACKS = (
    Attack(
        name="a threshold that is just reached",
        text=f"the unit is an event. A category with the threshold {THRESHOLD} has {THRESHOLD} events in the first of "
        f"{WINDOWS} windows. With D, it has one more. The adversary sees when the flag goes up.",
        options={"epsilon": EPSILON, "thresholds": THRESHOLD, "domain": Domain(["a"])},
        control={"epsilon": 32 * EPSILON},
        others=just,
        suspect=first_window(Sent(SUSPECT, "a")),
        score=earliness(WINDOWS, lambda row: bool(row.raised)),
        windows=WINDOWS,
    ),
)
