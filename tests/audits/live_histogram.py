"""Attacks on the whole stateful dataflow of live histograms: many runs at once, each a stream with a person of its own.

The adversary sees all that was published for a window before it chooses the events of the next one. State lives in
plain lists, and goes through the same bytes as on a runner.
"""

import copy
from collections import defaultdict

import numpy as np
import pyarrow as pa
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.userstate import RuntimeTimer
from apache_beam.transforms.window import TimestampedValue
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms.batches import StepKey
from privstream.transforms.histograms.categories import BoundRows, LimitRows, SplitRows
from privstream.transforms.timing.clocked import SEED, by_clock
from privstream.transforms.timing.keyed_state import Cells, KeyedState


class State(list):
    """A bag or a cell."""

    bag = True

    def read(self):
        return list(self) if self.bag else (self[-1] if self else None)

    def add(self, value):
        self.append(value)

    def write(self, value):
        self[:] = [value]


class Timer(RuntimeTimer):
    """Timers are not needed: the driver acts when it is time."""

    def __init__(self):
        pass

    def set(self, time, dynamic_timer_tag=""):
        pass


class Live:
    """A transform of people's categories, driven window by window; it keeps no decoded state from call to call."""

    def __init__(self, transform, seed, publisher=None, limiter=LimitRows):
        transform = copy.copy(transform)
        transform.noise = SeededNoise(seed)
        common = {"steps": transform.steps, "categories": transform.categories}
        self.transform, self.states = transform, defaultdict(State)
        self.split = SplitRows(**common, noise=transform.noise.derive("people"), shards=2)
        limit = transform.max_contributions
        self.bound = BoundRows(**common, timer_offset=1, limit=min(limit, transform.max_per_window or limit))
        self.limit = limiter(**common, timer_offset=2, limit=limit)
        self.publish = publisher or transform.publisher(3, transform._noise())
        self.publish.noise = transform._noise()
        for stage in (self.split, self.bound, self.limit, self.publish):
            stage.setup()
        for clock in by_clock(transform.categories.streams):
            list(self.publish.keep((clock.encode(), SEED), self._cells_of("publish", clock)))

    def window(self, number, users, items, streams):
        """Give the events of window 0, 1, ..; return what is published, estimates (streams, categories)."""
        steps = self.transform.steps
        step = steps.first + number
        times = np.full(len(users), step * steps.size, np.int64) + np.arange(len(users))
        texts = [pa.array(column, pa.string()) for column in (users, items, streams)]
        batch = pa.RecordBatch.from_arrays([*texts, pa.array(times)], names=["user", "item", "stream", "time"])
        for key, (digest, data) in self.split.process(batch):
            assert StepKey.from_bytes(key).step == step
            self.bound.process((key, (digest, data)), self.states[key, "batches"], Timer())
            self.bound.process((key, (digest, b"")), self.states[key, "batches"], Timer())
        for key in self._keys("batches"):
            for shard, record in self.bound.on_due(key, self.states[key, "batches"]):
                list(self.limit.keep((shard, record), self._cells_of("limit", shard)))
        for key in self._keys("limit waiting"):
            self.limit.keys = KeyedState(self.limit)
            time = steps.decision_time(step, 2)
            for element in self.limit.tick(key, time, self._cells_of("limit", key)):
                clock, record = element.value
                list(self.publish.keep((clock, record), self._cells_of("publish", clock.decode())))
        return self._published(step)

    def _published(self, step):
        self.publish.keys = KeyedState(self.publish.keys.stage)
        time, found = self.transform.steps.decision_time(step, 3), defaultdict(list)
        for clock in by_clock(self.transform.categories.streams):
            for row in self.publish.tick(clock.encode(), time, self._cells_of("publish", clock)):
                assert isinstance(row, TimestampedValue)
                assert not isinstance(row, TaggedOutput)
                found[row.value.stream].append(row.value.estimate)
        return np.array([found[stream] for stream in self.transform.categories.streams])

    def _cells_of(self, stage, key):
        """Return the states of a key in a stage."""
        waiting, progress, log = (self.states[key, f"{stage} {name}"] for name in ("waiting", "progress", "log"))
        progress.bag = False
        return Cells((waiting,), progress, log, Timer())

    def _keys(self, name):
        return [key for key, found in self.states if found == name]
