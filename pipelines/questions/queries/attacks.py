"""Attacks on queries: a person whom only the noise hides, and one with several records."""

from privstream.pipelines.questions.attack import SUSPECT, Attack, Sent, all_windows, nobody, total
from privstream.transforms.events.domain import Domain

EPSILON = 2.0

ATTACKS = (
    Attack(
        name="noise of an answer",
        text="with D, one person has an item twice; with D', nobody has it. The adversary asks how many have it.",
        options={"epsilon": EPSILON, "domain": Domain(["a"])},
        control={"epsilon": 2 * EPSILON},
        others=nobody,
        suspect=all_windows(Sent(SUSPECT, "a"), Sent(SUSPECT, "a")),
        score=total("estimate"),
        asked=(("a",),),
    ),
    Attack(
        name="several records",
        text="with D, one person has three items, of which one may count; with D', nobody has any. The adversary asks "
        "how many have one of them.",
        options={"epsilon": EPSILON, "domain": Domain(["a", "b", "c"])},
        control={"epsilon": 4 * EPSILON},
        others=nobody,
        suspect=all_windows(*(Sent(SUSPECT, item) for item in "abc")),
        score=total("estimate"),
        asked=(("a", "b", "c"),),
    ),
)
