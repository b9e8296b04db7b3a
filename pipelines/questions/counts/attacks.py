"""Attacks on counts: a person whom only the noise hides, one who comes too often, and one who is alone with an item."""

from privstream.pipelines.questions.attack import SUSPECT, Attack, Sent, all_windows, nobody, total
from privstream.transforms.events.domain import Domain

EPSILON = 2.0
ONE = Domain(["a"])
TWICE = all_windows(Sent(SUSPECT, "a"), Sent(SUSPECT, "a"))
WINDOWS = 6

ATTACKS = (
    Attack(
        name="noise of a count",
        text="with D, one person has an item twice in a window; with D', nobody has it. The adversary sees its count.",
        options={"epsilon": EPSILON, "domain": ONE, "max_contributions": 1},
        control={"epsilon": 2 * EPSILON},
        others=nobody,
        suspect=TWICE,
        score=total("count"),
    ),
    Attack(
        name="too many contributions",
        text=f"with D, one person has an item in each of {WINDOWS} windows, of which one may count. The adversary adds "
        "up the counts of all windows. The control has the same noise, and all of them count.",
        options={"epsilon": EPSILON, "domain": ONE, "max_contributions": 1},
        control={"epsilon": WINDOWS * EPSILON, "max_contributions": WINDOWS},
        others=nobody,
        suspect=TWICE,
        score=total("count"),
        windows=WINDOWS,
    ),
    Attack(
        name="a person alone with an item",
        text="the list of items is not public. With D, one person has an item that nobody else has. The adversary sees "
        "whether it is published.",
        options={"epsilon": 0.2, "delta": 0.002, "max_contributions": 1},
        control={"epsilon": 1.0, "delta": 0.1},
        others=nobody,
        suspect=all_windows(Sent(SUSPECT, "a")),
        score=lambda transform, rows: float(len(rows)),
    ),
)
