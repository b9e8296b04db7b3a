"""What a transform from events to private rows is asked with, and what it promises: all but its stages; no Beam."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms import checks
from privstream.mechanisms.accuracy import RUN, WINDOW, Accuracy, Limit
from privstream.mechanisms.mechanism import described
from privstream.mechanisms.noise.sources import NoiseSource, check_noise
from privstream.mechanisms.privacy.guarantee import GIVEN_NUMBERS, PEOPLE_HASHED, PrivacyGuarantee
from privstream.mechanisms.views.counts import Dropped
from privstream.transforms.batches import MOST_SHARDS
from privstream.transforms.reading.domain import Domain
from privstream.transforms.reading.fields import EventFields
from privstream.transforms.timing.steps import Moment, Steps, WindowOptions, of_period
from typing_extensions import Unpack

USUAL_CONTRIBUTIONS = 100  # per person, by default
MOST_CONTRIBUTIONS = 65_535
DOMAIN = "domain"
PUBLIC = ("all arguments but the noise", "the number of windows")

MACHINERY = ("noise", "shards")
"""What every transform is made with that says where its draws come from and how work is shared."""

View = Callable[[pa.Table, Dropped | None], pa.Table]
"""From a table of a run, with times in microseconds, and the share that limits drop, to what is shown."""


class Parameters:
    """The public parameters of a transform, what they promise, and how accurate its rows are.

    Plans need no more, and no Beam: the transform derives from such a class, and from `PrivateTransform`. Input may be
    bounded or unbounded, in any order. A window is decided once, at its end plus `allowed_lateness`; what comes later
    is never used. With `with_dead_letters()` the output is a `Published` pair of rows and dead letters.

    Args:
        noise: what all noise is drawn from: `KeyedNoise`; the same key gives the same rows for the same events.
        **options: see `privstream QUESTION --help`; times are seconds since 1970 UTC, lengths seconds
            or texts of a calendar.
    """

    NOISE_VERSION: ClassVar[int] = 1
    """Goes up when the same arguments and records draw other noise, or are limited or labelled in another way."""

    mechanism: Any
    """What draws the noise."""

    ended = False
    """Whether its input ends: see `over_files`."""

    _given: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(cls) -> None:
        """Let signatures have what a transform hands on: options of windows, or all that it derives from takes."""
        super().__init_subclass__()
        made = inspect.signature(cls.__init__)
        own = list(made.parameters.values())[1:]
        if own and own[-1].kind is own[-1].VAR_KEYWORD:
            if WindowOptions.__name__ in str(own[-1].annotation):
                options = inspect.signature(Steps.of).parameters
                own[-1:] = [options[name] for name in WindowOptions.__annotations__ if name not in made.parameters]
            else:
                maker, *others = (each for each in cls.__mro__ if "__init__" in vars(each))
                shared = inspect.signature(next(each for each in others if issubclass(maker, each))).parameters
                own = [*(each for name, each in shared.items() if name not in made.parameters), *own[:-1]]
        cls.__signature__ = made.replace(  # type: ignore[attr-defined]
            parameters=own, return_annotation=inspect.Signature.empty
        )

    def __new__(cls, *others: Any, **given: Any) -> Self:
        """Keep the parameters, which are public; what is missing or unknown is named here, for this transform."""
        if others or given:  # nothing is given where a copy or a pickle is read
            try:
                inspect.signature(cls).bind(*others, **given)
            except TypeError as error:
                raise TypeError(f"{cls.__name__}: {error}") from None
        if "epsilon" in given:
            checks.epsilon(given["epsilon"])
        if given.get(DOMAIN) is not None:
            given[DOMAIN] = Domain.of(given[DOMAIN])  # a list is the same as the domain that is made of it
        made = super().__new__(cls)
        made._given = {name: value for name, value in given.items() if name != "noise"}
        return made

    def __init__(self, noise: NoiseSource, shards: int = 1) -> None:
        super().__init__()
        check_noise(noise)
        if checks.integer("shards", shards, minimum=1) > MOST_SHARDS:
            raise ValueError(f"shards must be <= {MOST_SHARDS}, got {shards}")
        self.noise, self.shards = noise, shards

    @property
    def view(self) -> View | None:
        """What makes the rows that are shown of all that a run over files has released; None for these themselves."""
        return None

    def over_files(self) -> Self:
        """Return this transform for input that ends: random contributions count, of all that a person has.

        Where counts are released, each element is an Arrow stream of them under a `StepKey`, to which `view` applies.
        """
        made = copy.copy(self)
        made.ended = True
        return made

    @property
    def release(self) -> Mapping[str, Any]:
        """What is drawn, as plain values: transforms with equal ones draw the same noise for the same records.

        It has all arguments, with defaults, so that nothing that shapes a number can be missing, and besides them the
        mechanism, as its noise labels have it: an argument in `views` that reaches the mechanism still counts.
        """
        made, arguments = self.mechanism, inspect.signature(type(self)).parameters
        every = {name: each.default for name, each in arguments.items() if each.default is not each.empty}
        every |= {**self._given, **{name: value for name, value in self.views.items() if name in arguments}}
        label = [type(made).__name__, getattr(made, "NOISE_VERSION", 1), getattr(made, "noise_label", "")]
        return {
            "transform": type(self).__name__,
            "noise": self.NOISE_VERSION,
            "arguments": {name: plain(value) for name, value in every.items() if name not in MACHINERY},
            "mechanism": [*label, getattr(made, "parameters", described(made)).decode("latin-1")],
        }

    @property
    def views(self) -> Mapping[str, Any]:
        """Arguments that are applied to what was drawn, and what stands for them in `release`."""
        return {}

    @property
    @abstractmethod
    def promise(self) -> PrivacyGuarantee:
        """What is promised by a run that is one budget period."""

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """What is promised: over the whole run, or in each budget period."""
        steps: Steps | None = getattr(self, "steps", None)  # queries about one data set have no windows
        return self.promise if steps is None else of_period(replace(self.promise, step="window"), steps)

    @property
    def person_limits(self) -> tuple[Limit, ...]:
        """What limits per person may drop something."""
        return ()

    @property
    @abstractmethod
    def accuracy(self) -> Accuracy:
        """How accurate the rows are about what counts, and what limits may drop, by public parameters alone."""

    @property
    def public(self) -> Mapping[str, Any]:
        """Public parameters that options only name, such as the rules in a file; plain values, for guarantee files."""
        return {}

    @property
    def fingerprint(self) -> bytes:
        """Eight bytes that state is bound to: they stand for the noise, and for parameters that are no defaults."""
        arguments = inspect.signature(type(self)).parameters
        defaults = {name: plain(one.default) for name, one in arguments.items() if one.default is not one.empty}
        given = {name: plain(value) for name, value in self._given.items()}
        given = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
        noise = self.noise.derive("state").words(1).tobytes()
        return hashlib.blake2b(noise + json.dumps(given, sort_keys=True).encode(), digest_size=8).digest()

    @property
    def event_fields(self) -> EventFields:
        """What is read of an event."""
        return EventFields()


class WindowedParameters(Parameters):
    """Parameters of a question that is answered in every window."""

    def __init__(
        self,
        *,
        epsilon: float,
        start: Moment,
        noise: NoiseSource,
        end: Moment | None = None,
        delta: float = 0.0,
        shards: int = 4,
        **options: Unpack[WindowOptions],
    ) -> None:
        super().__init__(noise, shards)
        self.steps = Steps.of(start=start, end=end, **options)
        self.budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta}


def plain(value: Any) -> Any:
    """Return a parameter as a value for JSON, exactly."""
    if isinstance(value, Domain):
        value = value.digest
    elif hasattr(value, "describe"):
        value = plain(value.describe())
    elif hasattr(value, "micros"):  # a `Timestamp` of Beam
        value = f"{value.micros} us"
    elif is_dataclass(value) and not isinstance(value, type):
        value = [type(value).__name__, *(getattr(value, each.name) for each in fields(value))]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | np.number):
        return int(value) if float(value).is_integer() else repr(float(value))
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    raise TypeError(f"parameters must be plain values, got {type(value).__name__}")


BEGIN, END = 0, 1


@dataclass(frozen=True)
class Actions:
    """What events say of two kinds: which texts begin something, and which end it.

    Attributes:
        begin: texts that begin; None for all others than those that end.
        end: texts that end; None for none.
    """

    begin: tuple[str, ...] | None
    end: tuple[str, ...] | None

    @classmethod
    def of(cls, **texts: Any) -> Actions:
        """Make them of two arguments, both distinct texts or None."""
        for name, values in texts.items():
            if values is not None:
                distinct_texts(name, values)
        (one, begin), (other, end) = texts.items()
        if set(begin or ()) & set(end or ()):
            raise ValueError(f"{one} and {other} must have nothing in common")
        return cls(begin, end)

    def kinds(self, items: pa.Array) -> np.ndarray:
        """Return BEGIN, END or -1 for neither, int64, for each item."""
        begins, ends = (
            pc.is_in(items, pa.array(texts or (), pa.string())).to_numpy(zero_copy_only=False)
            for texts in (self.begin, self.end)
        )
        return np.where(ends, END, np.where(~ends if self.begin is None else begins, BEGIN, -1))

    def codes(self, batch: pa.RecordBatch) -> np.ndarray:
        """Return the kind of each event; all begin where no item is read."""
        return self.kinds(batch["item"]) if "item" in batch.schema.names else np.full(batch.num_rows, BEGIN)


@dataclass(frozen=True)
class Bound:
    """How many contributions (distinct items in windows) count per person; which ones, the person's own events decide.

    Attributes:
        in_run: at most in the run, or in each budget period.
        per_window: at most in one window, random ones; None for no limit other than `in_run`.
        sampled: whether random ones of the whole run count, which is known when the input has ended; else they are
            paced: those that come first, but few enough by each window, so that something is left for the last one.
        paced: False where a person cannot have more than `in_run`: nothing is dropped then.
    """

    in_run: int
    per_window: int | None = None
    sampled: bool = False
    paced: bool = True

    def allowed(self, number: int, windows: int) -> int:
        """Return how many, if paced, may be used by the end of window `number`, from 1; the rest is carried over.

        Whatever `in_run` is, a quarter of it may be used at once, and the last window may use up the rest.
        """
        return min(self.in_run, -(-self.in_run * (windows + 3 * number) // (4 * windows)))


def distinct_texts(name: str, texts: Any) -> tuple[str, ...]:
    """Return a list of distinct texts, at least one and none of them empty; `name` is what errors call it."""
    if isinstance(texts, str) or not isinstance(texts, Collection):
        raise TypeError(f"{name} must be a list of texts, got {type(texts).__name__}")
    if not all(isinstance(text, str) and text for text in texts) or not 0 < len(set(texts)) == len(texts):
        raise ValueError(f"{name} must be distinct texts, at least one, none of them empty")
    return tuple(texts)


def check_limits(unit: str, **limits: int | None) -> None:
    """Refuse limits per person that are out of range, or are given where an event is protected."""
    for name, limit in limits.items():
        if limit is not None:
            if unit == "event":
                raise ValueError(f"{name} must not be given when the unit is an event")
            checks.integer(name, limit, minimum=1, maximum=MOST_CONTRIBUTIONS)


def within(found: PrivacyGuarantee, limits: Iterable[Limit], *more: str, hashed: bool = True) -> PrivacyGuarantee:
    """Return what a mechanism promises a person within `limits`; `more` sentences say what else is limited.

    Args:
        hashed: whether people are told apart by hashes.
    """
    sentences = [f"A person counts with at most {limit}." for limit in limits]
    caveats = [text for text in found.caveats if text != GIVEN_NUMBERS] + [PEOPLE_HASHED] * hashed
    return replace(found, limits=(*sentences, *more), public=PUBLIC, caveats=tuple(caveats))


def limits_of(
    *, run: int | None = None, window: int | None = None, thing: str = "item", whole: str = ""
) -> tuple[Limit, ...]:
    """Return the two limits per person; None for no limit. `whole` as `thing`, in the run."""
    found = (("max_contributions", run, whole or thing, RUN), ("max_per_window", window, thing, WINDOW))
    return tuple(Limit(option, most, what, where) for option, most, what, where in found if most is not None)
