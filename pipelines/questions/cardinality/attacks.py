"""Attacks on sizes of sets: a person in the set, with fresh noise and with changes that are tested; an event."""

from privstream.pipelines.questions.attack import SUSPECT, Attack, Sent, all_windows, crowd, first_window, total

EPSILON = 2.0
LEAVE = ("out",)
OTHERS = all_windows(*crowd(30, "in"))
TWICE = all_windows(Sent(SUSPECT, "in"), Sent(SUSPECT, "in"))

ATTACKS = (
    Attack(
        name="fresh noise",
        text="30 people are in the set. With D, one person more enters, twice. The adversary sees the number.",
        options={"epsilon": EPSILON, "leave_values": LEAVE, "method": "direct_counter"},
        control={"epsilon": 2 * EPSILON},
        others=OTHERS,
        suspect=TWICE,
        score=total("estimate"),
    ),
    Attack(
        name="changes that are tested",
        text="30 people are in the set, in 3 windows. With D, one person more enters in all of them. The adversary "
        "adds up the numbers.",
        options={"epsilon": EPSILON, "leave_values": LEAVE, "method": "sparse_counter", "max_updates": 20},
        control={"epsilon": 8 * EPSILON},
        others=OTHERS,
        suspect=TWICE,
        score=total("estimate"),
        windows=3,
    ),
    Attack(
        name="an event",
        text="the unit is an event. 30 people are in the set. With D, there is one event more, by which somebody "
        "enters. The adversary sees the number.",
        options={"epsilon": EPSILON, "unit": "event", "leave_values": LEAVE},
        control={"epsilon": 4 * EPSILON},
        others=OTHERS,
        suspect=first_window(Sent(SUSPECT, "in")),
        score=total("estimate"),
    ),
)
