"""An attack on nearest points: one insertion of a point."""

from collections.abc import Iterable

from privstream.pipelines.audit.attack import Attack, Seen, Sent, earliness, first_window

EPSILON = 2.0
WINDOWS, POINT = 3, 1


def about_half(seen: Seen) -> Iterable[Sent]:
    """Insert the point half as often, at the start, as makes sure that it is found."""
    often = seen.transform.error(1) // 2
    return [Sent(POINT, "in")] * often if seen.window == 0 else []


ATTACKS = (
    Attack(
        name="points that only come",
        text=f"the unit is an event. One point is inserted so often that it may be found. With D, once more. The "
        f"adversary sees in which of {WINDOWS} windows it is found first.",
        options={"epsilon": EPSILON, "universe": 1, "standing": (POINT,), "duplicates": "counted"},
        control={"epsilon": 8 * EPSILON},
        others=about_half,
        suspect=first_window(Sent(POINT, "in")),
        score=earliness(WINDOWS, lambda row: row.predecessor > 0),
        windows=WINDOWS,
    ),
)
