"""An attack on nearest points: one insertion of a point."""

from collections.abc import Iterable

from privstream.pipelines.questions.attack import Attack, Seen, Sent, earliness, first_window

EPSILON = 3.0
POINT = 1


def about_half(seen: Seen) -> Iterable[Sent]:
    """Insert the point half as often, at the start, as makes sure that it is found."""
    often = seen.transform.error(1) // 2
    return [Sent(POINT, "in")] * often if seen.window == 0 else []


ATTACKS = (
    Attack(
        name="points that only come",
        text="the unit is an event. One point is inserted so often that it may be found. With D, once more. The "
        "adversary sees whether it is found.",
        options={"epsilon": EPSILON, "universe": 1, "standing": (POINT,), "duplicates": "counted"},
        control={"epsilon": 4 * EPSILON},
        others=about_half,
        suspect=first_window(Sent(POINT, "in")),
        score=earliness(1, lambda row: bool(row.predecessor > 0)),
    ),
)
