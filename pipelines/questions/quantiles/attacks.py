"""Attacks on quantiles: a person whose value is above all others, and one who comes too often."""

from privstream.pipelines.questions.attack import SUSPECT, Attack, Sent, all_windows, total

EPSILON = 2.0
LOW, HIGH = 0.5, 1.5
QUANTILES = tuple(number / 40 for number in range(1, 40))
FEW = (0.3, 0.5, 0.7)
WINDOWS = 6
OTHERS = tuple(Sent(1 + i, "", LOW if i % 2 else HIGH) for i in range(8))

ATTACKS = (
    Attack(
        name="a value more",
        text="of 8 people, half have a low value and half a high one. With D, one person more has a high one, twice. "
        "The adversary adds up all quantiles.",
        options={
            "epsilon": EPSILON,
            "low": 0,
            "high": 2,
            "resolution": 2,
            "max_contributions": 1,
            "quantiles": QUANTILES,
        },
        control={"epsilon": 4 * EPSILON},
        others=all_windows(*OTHERS),
        suspect=all_windows(Sent(SUSPECT, "", HIGH), Sent(SUSPECT, "", HIGH)),
        score=total("estimate"),
    ),
    Attack(
        name="too many values",
        text="of 4 people, half have a low value and half a high one. With D, one person more has a high one in each "
        f"of {WINDOWS} windows, of which one may count. The adversary adds up the quantiles of all windows. The "
        "control has the same noise, and all of them count.",
        options={"epsilon": EPSILON, "low": 0, "high": 2, "resolution": 2, "max_contributions": 1, "quantiles": FEW},
        control={"epsilon": WINDOWS * EPSILON, "max_contributions": WINDOWS},
        others=all_windows(*OTHERS[:4]),
        suspect=all_windows(Sent(SUSPECT, "", HIGH)),
        score=total("estimate"),
        windows=WINDOWS,
    ),
)
