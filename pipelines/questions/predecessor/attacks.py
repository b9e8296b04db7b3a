"""Attacks on nearest points: one update of a point, where others come and go and where they only come."""

from collections.abc import Iterable

from privstream.pipelines.audit.attack import Attack, Seen, Sent, earliness, first_window

EPSILON = 4.0
WINDOWS, POINT = 3, 1


def about_half(seen: Seen) -> Iterable[Sent]:
    """Insert the point so often, at the start, that it may be found."""
    mechanism = seen.transform.mechanism
    return [Sent(POINT, "in")] * mechanism.error(1) if seen.window == 0 else []


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
