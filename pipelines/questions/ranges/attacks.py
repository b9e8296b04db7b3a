"""Attacks on range counts: one update of a point, counted or not if it is there already."""

from privstream.pipelines.questions.attack import Attack, Sent, first_window, nobody, total

EPSILON = 2.0
POINT = 1
INSERTED = first_window(Sent(POINT, "in"))

ATTACKS = (
    Attack(
        name="one point",
        text="the unit is an event. With D, one point is inserted; with D', none. The adversary sees the count.",
        options={"epsilon": EPSILON, "universe": 1, "standing": ((1, 1),), "duplicates": "counted"},
        control={"epsilon": 2 * EPSILON},
        others=nobody,
        suspect=INSERTED,
        score=total("estimate"),
    ),
    Attack(
        name="a point in two ranges",
        text="the unit is an event, and a point that is there is not counted again. With D, one point of two is "
        "inserted. The adversary adds up the counts of a range with both and one with that point.",
        options={"epsilon": EPSILON, "universe": 2, "standing": ((1, 1), (1, 2))},
        control={"epsilon": 8 * EPSILON},
        others=nobody,
        suspect=INSERTED,
        score=total("estimate"),
    ),
)
