"""Attacks by trials, where a mechanism tests in secret: two neighbouring inputs, and how rows tell which it was.

Many trials are one run of a pipeline, each with noise and people of its own. A trial is a budget period; or, where the
noise of items is independent, it is items that no other trial has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.audit.evidence import Events
from privstream.pipelines.audit.replay import publish
from privstream.pipelines.audit.worst import MINUTE, SUSPECT, Sent, batches, crowd
from privstream.pipelines.model.question import QuestionInfo
from privstream.transforms.counts.keyed_counts import CountsParameters
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.fields import NUMBER
from privstream.transforms.stages import PrivateTransform
from privstream.transforms.timing.steps import MICROS

PERIOD = ""
"""What tells trials apart that are budget periods of one run."""

ROWS_PER_BATCH = 50_000
DIGITS = 7

Adversary = Callable[[Any], Iterable[Sent]]
"""What is sent in the first window, given the transform, all of whose parameters are public."""

Event = Callable[[Sequence[Any]], bool]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack: inputs D and D' that differ in one unit, in one window, and an event that tells them apart.

    Attributes:
        name: in a few words.
        text: what the inputs are and what the adversary looks at, in a sentence.
        options: arguments of the transform.
        control: other arguments, of a transform that promises less: held against the guarantee of `options`, the same
            attack must refute it.
        others: what everybody else sends, with D and with D' alike.
        suspect: what the one unit sends, with D alone.
        event: of all rows of a trial: what D makes more likely.
        about: whether it shows the epsilon that is there, or a delta alone.
        times: how many times as many trials as are asked for it takes: what shows most is rare, and a trial is small.
        one_in: one trial in so many gets D. Where D' has no events, trials with it cost nothing.
        told_by: the field of a row by which trials are told apart: each has items there that no other trial has; or
            `PERIOD`.
    """

    name: str
    text: str
    options: Mapping[str, Any]
    control: Mapping[str, Any]
    suspect: Sequence[Sent]
    event: Event
    others: Adversary = lambda transform: ()
    about: Literal["epsilon", "delta"] = "epsilon"
    times: int = 1
    one_in: int = 2
    told_by: str = PERIOD


class Trials:
    """The trials of one attack on one transform: some get D, the others D'.

    Args:
        options: of the transform, without its windows and noise.
        number: of trials, a multiple of the attack's `one_in`, and so is `first`, which tells runs apart.
        noise: of the whole run; trials derive theirs from it.

    Attributes:
        transform: what is attacked.
        guarantee: what it promises to one unit, who is in one trial.
    """

    def __init__(
        self,
        spec: QuestionInfo,
        attack: Attack,
        options: Mapping[str, Any],
        number: int,
        noise: NoiseSource,
        first: int = 0,
    ) -> None:
        self.attack, self.periods = attack, attack.told_by == PERIOD
        self.names = tuple(f"{place:0{DIGITS}}" for place in range(first, first + number))
        given: dict[str, Any] = {**options, "window": MINUTE, "start": 0, "end": MINUTE}
        if "shards" in spec.arguments:
            given["shards"] = 1  # trials are parts enough
        alone: Any = spec.transform_class(**given, noise=noise)
        self.guarantee: PrivacyGuarantee = alone.guarantee
        if self.periods:
            given |= {"end": MINUTE * number, "renew_every": MINUTE}
            noise = noise.derive("trials", first)
        elif "domain" in options:
            items = options["domain"].texts.to_pylist()
            given["domain"] = Domain([f"{name} {item}" for name in self.names for item in items])
        self.transform: PrivateTransform = spec.transform_class(**given, noise=noise)
        if isinstance(self.transform, CountsParameters):  # each is as one is that has no others
            self.transform.mechanism = alone.mechanism

    def run(self) -> tuple[Events, Events]:
        """Return in which trials with D, and in which of those with D', the event happened, bool (trials,) each.

        Raises:
            RunError: the run failed.
        """
        rows: dict[str, list[Any]] = defaultdict(list)
        for row in publish(self.transform, batches(self.transform, list(self._sent()), ROWS_PER_BATCH)):
            if self.periods:
                rows[self.names[row.window_start.micros // (MINUTE * MICROS)]].append(row)
            else:
                rows[getattr(row, self.attack.told_by).partition(" ")[0]].append(row)
        happened = np.array([self.attack.event(rows[name]) for name in self.names])
        with_suspect = np.arange(len(happened)) % self.attack.one_in == 0
        return happened[with_suspect], happened[~with_suspect]

    def _sent(self) -> Iterator[Sent]:
        """Yield the events of all trials. Nobody is in two trials."""
        others, points = list(self.attack.others(self.transform)), self.transform.event_fields.user == NUMBER
        for number, name in enumerate(self.names):
            for one in (*others, *self.attack.suspect) if number % self.attack.one_in == 0 else others:
                user = one.user if points else f"{name} {one.user}"
                yield Sent(user, one.item, number) if self.periods else Sent(user, f"{name} {one.item}", 0)


def any_above(field: str, least: float = 0) -> Event:
    """Return the event that a field of a row says yes, or is above a number."""
    return lambda rows: any(getattr(row, field) > least for row in rows)


EPSILON, POINT_EPSILON = 2.0, 3.0
ONE = Domain(["a"])

EMPTY = 100
"""One trial in so many has an event, the others have no cost: that an item of nobody is published is seen to be rare,
even times e^epsilon.
"""

COUNTS = (
    Attack(
        name="a person alone with an item",
        text="the list of items is not public. With D, one person has an item that nobody else has. The adversary sees "
        "whether it is published. The control publishes it with 5%, as if it were not charged.",
        options={"epsilon": EPSILON, "delta": 0.002, "max_contributions": 1},
        control={"delta": 0.1},
        suspect=[Sent(SUSPECT, "a", 0)],
        event=lambda rows: len(rows) > 0,
        about="delta",
        times=3 * EMPTY,
        one_in=EMPTY,
        told_by="item",
    ),
)

MANY_EVENTS = 20

HISTOGRAM = (
    Attack(
        name="noise of a count",
        text=f"the unit is an event. There are {MANY_EVENTS} events, so that the estimate is renewed. With D, there is "
        "one more. The adversary sees whether the count is above that. The control has a quarter of the noise.",
        options={"epsilon": EPSILON, "domain": ONE, "largest": 1},
        control={"epsilon": 4 * EPSILON},
        times=4,
        others=lambda transform: crowd(MANY_EVENTS, ["a"], 0),
        suspect=[Sent(SUSPECT, "a", 0)],
        event=any_above("estimate", MANY_EVENTS),
        told_by="category",
    ),
)

THRESHOLD = 20

FLAGS = (
    Attack(
        name="a threshold that is just reached",
        text=f"the unit is an event. A category with the threshold {THRESHOLD} has {THRESHOLD - 1} events. With D, it "
        "has one more. The adversary sees whether the flag goes up.",
        options={"epsilon": EPSILON, "thresholds": THRESHOLD, "domain": ONE},
        control={"epsilon": 4 * EPSILON},
        times=16,
        others=lambda transform: crowd(THRESHOLD - 1, ["a"], 0),
        suspect=[Sent(SUSPECT, "a", 0)],
        event=any_above("raised"),
        told_by="category",
    ),
)

POINT = [Sent(1, "in", 0)]

RANGES = (
    Attack(
        name="one point",
        text="the unit is an event. With D, one point is inserted; with D', none. The adversary sees whether there "
        "is one. Noise is for a point that comes and goes, of which one window shows half.",
        options={"epsilon": EPSILON, "universe": 1, "standing": ((1, 1),)},
        control={"epsilon": 4 * EPSILON},
        suspect=POINT,
        event=any_above("estimate"),
        times=4,
    ),
)

PREDECESSOR = (
    Attack(
        name="points that only come",
        text="the unit is an event. One point is inserted so often that it may be found. With D, once more. The "
        "adversary sees whether it is found.",
        options={"epsilon": POINT_EPSILON, "universe": 1, "standing": (1,)},
        control={"epsilon": 2 * POINT_EPSILON},
        times=4,
        others=lambda transform: POINT * (transform.error(1) // 2),
        suspect=POINT,
        event=any_above("predecessor"),
    ),
)

NONE: tuple[Attack, ...] = ()
"""Of questions whose noise is added to numbers: replays say all."""
