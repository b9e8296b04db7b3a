"""A runner for one chain of DoFns that does on purpose whatever a runner may do.

It splits input into bundles of any size and order, fails bundles at any state access and replays them on another
instance with the state rolled back, delivers the timers of a key in any order, twice, or without need. The watermark
is honest: when it reaches T, a stage has got everything that the stage before it emitted by its own timers up to T.
"""

import functools
import inspect
import itertools
import pickle
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import PipelineVisitor
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.common import DoFnSignature
from apache_beam.transforms.core import _StateDoFnParam, _TimerDoFnParam
from apache_beam.transforms.userstate import BagStateSpec, RuntimeTimer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from event_forms import as_arrow, checked
from privstream.transforms.batches import StepKey
from privstream.transforms.counts.contributions import CLOCK, CountContributions
from privstream.transforms.timing.step_fn import SEED, StepFn


class WorkerLost(Exception):  # noqa: N818
    """The worker is lost in the middle of a bundle."""


@dataclass
class Cells:
    """State and timers of a stage, which survive only if their bundle does."""

    states: dict = field(default_factory=lambda: defaultdict(list))
    timers: dict = field(default_factory=dict)
    added: int = 0  # bytes written

    def copied(self) -> "Cells":
        """Return cells to work on; what they hold never changes."""
        return Cells(self.states.copy(), dict(self.timers), self.added)


@dataclass
class Bundle:
    """What one bundle does before it is committed."""

    cells: Cells
    crash_after: int | None
    accesses: int = 0

    def access(self) -> None:
        self.accesses += 1
        if self.crash_after is not None and self.accesses > self.crash_after:
            raise WorkerLost


class FakeState:
    """A bag, or a cell that holds one value."""

    def __init__(self, bundle: Bundle, place: tuple, bag: bool) -> None:
        self.bundle, self.place, self.bag = bundle, place, bag

    def read(self):
        self.bundle.access()
        values = list(self.bundle.cells.states[self.place])
        return values if self.bag else (values[-1] if values else None)

    def add(self, value: bytes) -> None:
        assert isinstance(value, bytes)
        self.bundle.access()
        self.bundle.cells.added += len(value)
        states = self.bundle.cells.states
        states[self.place] = [*states[self.place], value]  # the list before stays with the cells before

    def write(self, value: bytes) -> None:
        self.clear()
        self.add(value)

    def clear(self) -> None:
        self.bundle.access()
        self.bundle.cells.states.pop(self.place, None)


class FakeTimer(RuntimeTimer):
    def __init__(self, bundle: Bundle, key: bytes, name: str) -> None:
        self.bundle, self.key, self.name = bundle, key, name

    def set(self, time, dynamic_timer_tag: str = "") -> None:
        self.bundle.access()
        self.bundle.cells.timers[self.key, self.name, dynamic_timer_tag] = Timestamp.of(time).micros

    def clear(self, dynamic_timer_tag: str = "") -> None:
        self.bundle.access()
        self.bundle.cells.timers.pop((self.key, self.name, dynamic_timer_tag), None)


class FakeCounter:
    def __init__(self, name: str, totals: Counter) -> None:
        self.name, self.totals = name, totals

    def inc(self, amount: int = 1) -> None:
        self.totals[self.name] += amount


class Stage:
    """One stateful DoFn on several workers."""

    def __init__(self, fn: beam.DoFn, chance: random.Random, *, crashes: float = 0.0, workers: int = 1) -> None:
        self.fn = fn
        self.chance = chance
        self.crashes = crashes
        written = pickle.dumps(fn)
        self.workers = [pickle.loads(written) for _ in range(workers)]
        for worker in self.workers:
            worker.setup()
        self.cells = Cells()
        self.counters: Counter = Counter()
        self.outputs: list = []
        self.dead: list = []
        signature = DoFnSignature(fn)
        self.callbacks = {spec.name: spec._attached_callback.__name__ for spec in signature.timer_methods}

    def feed(self, elements: list) -> None:
        """Process elements, in any order and any bundles."""
        left = list(elements)
        self.chance.shuffle(left)
        while left:
            size = self.chance.randint(1, 5)
            calls = [("process", element[0], None, element) for element in left[:size]]
            self._commit(calls)
            del left[:size]

    def advance(self, watermark: int) -> None:
        """Fire all timers that are due, and those that they set."""
        while due := [timer for timer, time in self.cells.timers.items() if time <= watermark]:
            self.chance.shuffle(due)
            for timer in due[: self.chance.randint(1, len(due))]:
                time = self.cells.timers.get(timer)
                if time is None or time > watermark:
                    continue
                key, name, _ = timer
                call = (self.callbacks[name], key, Timestamp(micros=time // 1000 * 1000), None)
                twice = self.crashes and self.chance.random() < 0.1
                self._commit([call, call] if twice else [call], fired=timer)

    def take(self) -> list:
        """Return what has been emitted since the last time."""
        taken, self.outputs = self.outputs, []
        return taken

    def _commit(self, calls: list, fired: tuple | None = None) -> None:
        while True:
            crash_after = self.chance.randint(0, 8) if self.chance.random() < self.crashes else None
            bundle = Bundle(self.cells.copied(), crash_after)
            if fired is not None:
                bundle.cells.timers.pop(fired, None)
            counted: Counter = Counter()
            emitted: list = []
            worker = self.chance.choice(self.workers)
            for name, value in vars(worker).items():
                if hasattr(value, "inc"):
                    setattr(worker, name, FakeCounter(name, counted))
            try:
                for call in calls:
                    emitted += self._call(worker, bundle, *call)
                bundle.access()
            except WorkerLost:
                continue
            self.cells = bundle.cells
            self.counters += counted
            self.dead += [e.value for e in emitted if isinstance(e, TaggedOutput)]
            values = [e for e in emitted if not isinstance(e, TaggedOutput)]
            self.outputs += [value.value if isinstance(value, TimestampedValue) else value for value in values]
            return

    def _call(self, worker: beam.DoFn, bundle: Bundle, name: str, key: bytes, time: Timestamp | None, element) -> list:
        method = getattr(worker, name)
        arguments = {}
        for parameter, wanted in defaults_of(method.__func__).items():
            if isinstance(wanted, _StateDoFnParam):
                spec = wanted.state_spec
                arguments[parameter] = FakeState(bundle, (key, spec.name), isinstance(spec, BagStateSpec))
            elif isinstance(wanted, _TimerDoFnParam):
                arguments[parameter] = FakeTimer(bundle, key, wanted.timer_spec.name)
            elif wanted is beam.DoFn.KeyParam:
                arguments[parameter] = key
            elif wanted is beam.DoFn.TimestampParam:
                arguments[parameter] = time
            else:
                assert wanted is inspect.Parameter.empty, parameter
                arguments[parameter] = element
        return list(method(**arguments) or [])


@functools.cache
def defaults_of(function: Callable) -> dict[str, Any]:
    """Return the defaults of a method's parameters but the first, which say what Beam gives it."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}


class DoFns(PipelineVisitor):
    """Collects the DoFns of a pipeline by class name, and the keys whose clocks are started for each `StepFn`."""

    def __init__(self) -> None:
        self.found: dict[str, beam.DoFn] = {}
        self.seeds: dict[str, tuple[bytes, ...]] = {}

    def visit_transform(self, node) -> None:
        if isinstance(node.transform, beam.ParDo):
            fn = node.transform.fn
            self.found[type(fn).__name__] = fn
            if isinstance(fn, StepFn):
                self.seeds[type(fn).__name__] = self._names(node)

    def _names(self, node) -> tuple[bytes, ...]:
        """Return the keys that are flattened with the input of a stage."""
        (flattened,) = node.inputs
        return flattened.producer.parent.transform.names


@functools.lru_cache(maxsize=32)
def dofns_of(transform: beam.PTransform, runner: str = "FlinkRunner") -> dict[str, beam.DoFn]:
    """Return the DoFns that a transform builds for a runner, by class name; each caller works on copies of them."""
    pipeline = beam.Pipeline(options=PipelineOptions([f"--runner={runner}"]))
    _ = pipeline | beam.Create([("u", "i")]).with_output_types(Any) | transform
    visitor = DoFns()
    pipeline.visit(visitor)
    for name, keys in visitor.seeds.items():
        visitor.found[name].seeds = keys
    return visitor.found


def call_all(fn: beam.DoFn, elements: list) -> list:
    """Run a stateless DoFn; return the values that it emits on the main output."""
    fn = pickle.loads(pickle.dumps(fn))
    fn.setup()
    return [
        out.value if isinstance(out, WindowedValue) else out
        for element in elements
        for out in fn.process(element) or []
        if not isinstance(out, TaggedOutput)
    ]


SPLITTING = ("CountPerStep", "PackUpdates", "SplitEvents")
CLOSING = ("BoundPerWindow", "LastPresence", "ToClock")
STAGES = (
    *("DecideSteps", "CountContributions", "SampleContributions", "PublishCounts", "ShowCounts"),
    *("TrackMembers", "LimitWindows", "RunningAnswers"),
)
"""Stateful DoFns in their order, after what closes windows; no transform has all of them."""


class OpenWindows:
    """What `CloseWindows` does: batches wait until their step is decided, and go to a stage together; late ones are
    dropped and counted."""

    def __init__(self, fn: beam.DoFn, steps) -> None:
        self.fn, self.steps, self.waiting, self.late, self.watermark = fn, steps, defaultdict(list), 0, -(2**62)

    def send(self, keyed_batches: list) -> None:
        for key, batch in keyed_batches:
            if self._decision(key) > self.watermark:
                self.waiting[key].append(batch)
            else:
                self.late += batch[0]

    def close(self, watermark: int) -> list:
        self.watermark = watermark
        ready = [key for key in self.waiting if self._decision(key) <= watermark]
        return call_all(self.fn, [(key, self.waiting.pop(key)) for key in ready])

    def _decision(self, key: bytes) -> int:
        return self.steps.decision_time(StepKey.from_bytes(key).step)


def started(fn: beam.DoFn, chance: random.Random, **options) -> Stage:
    """Return a stage of which all clocks have been started."""
    stage = Stage(fn, chance, **options)
    stage.feed([(name, SEED) for name in fn.seeds])
    return stage


class Chain:
    """The whole dataflow of a transform, driven by hand: bundles that fail, in any order, along any watermark."""

    def __init__(self, made: beam.PTransform, chance: random.Random, *, crashes: float = 0.0, workers: int = 1) -> None:
        fns = dofns_of(made)
        self.made, self.chance = made, chance
        self.split, closing = (next(fns[name] for name in names if name in fns) for names in (SPLITTING, CLOSING))
        self.open = OpenWindows(closing, made.steps)
        self.stages = [started(fns[name], chance, crashes=crashes, workers=workers) for name in STAGES if name in fns]
        self.rows: list = []
        self.counted: list = []

    def arrive(self, events: list, size: int = 1000) -> None:
        """Take events (user, item, microseconds) in batches of random lengths up to `size`."""
        self.open.send(call_all(self.split, checked(self.made, as_arrow(list(events), size))))

    def advance(self, watermark: int) -> None:
        """Move the watermark of the source, and let it pass through all stages."""
        elements = self.open.close(watermark)
        for stage in self.stages:
            stage.feed(elements)
            if stage is self.stages[0] or not self._held():
                stage.advance(watermark)
            elements = stage.take()
            if isinstance(stage.fn, CountContributions):
                elements = [element for element in elements if element[0] != CLOCK]
                self.counted += elements
        self.rows += elements

    def _held(self) -> bool:
        """Tell whether a sample of contributions, which is taken at the end, holds the watermark."""
        return getattr(self.made, "chooses_randomly", False) and bool(self.stages[0].cells.timers)

    def counters(self) -> dict[str, int]:
        return {f"{type(s.fn).__name__}.{name}": n for s in self.stages for name, n in s.counters.items() if n}


END = 2**62 // 1000 * 1000  # a watermark after everything


def drive(made: beam.PTransform, events: list, chance: random.Random, **options: Any) -> Chain:
    """Run events, none of them late, in a random order of arrival along a random watermark."""
    chain, waiting, size = Chain(made, chance, **options), list(events), made.steps.size
    watermark = made.steps.first * size
    while waiting or watermark < made.steps.end * size:
        watermark += chance.choice([1, 5, 10, 30]) * size // 10
        come = [event[2] // size * size <= watermark or chance.random() < 0.1 for event in waiting]
        due = [*itertools.compress(waiting, come)]
        waiting = [*itertools.compress(waiting, [not each for each in come])]
        chance.shuffle(due)
        chain.arrive(due, chance.choice([1, 7, 1000]))
        chain.advance(watermark)
    chain.advance(END)
    return chain


def drive_at_once(made: beam.PTransform, events: list, chance: random.Random, **options: Any) -> Chain:
    """Run all events in a few large batches."""
    chain = Chain(made, chance, **options)
    chain.arrive(events, 10_000)
    chain.advance(END)
    return chain
