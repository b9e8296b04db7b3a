"""The stages of counts per key, driven by hand; and what they counted before there was noise."""

import itertools

from counts_workloads import WINDOWS
from event_forms import as_arrow, checked
from privstream.transforms.batches import CountBatch, decode
from privstream.transforms.counts.contributions import CLOCK
from privstream.transforms.counts.publishing import to_shard
from privstream.transforms.timing.clock import STEP
from tiny_runner import END, OpenWindows, call_all, dofns_of, started
from workloads import SECOND, START


class Chain:
    """The stages of a transform, driven by hand: bundles that fail, in any order, along a random watermark."""

    def __init__(self, made, chance, *, crashes=0.0, workers=1, instead=None):
        fns = dofns_of(made) | (instead or {})
        (publish,) = {"PublishCounts", "PublishFound"} & {*fns}
        (count,) = {"CountContributions", "CountRandomContributions"} & {*fns}
        self.made, self.chance, self.split = made, chance, fns["SplitEvents"]
        self.open = OpenWindows(fns["BoundPerWindow"], made.steps)
        self.stages = [
            started(fns[name], chance, crashes=crashes, workers=workers) for name in (count, publish, "ShowCounts")
        ]
        self.rows, self.counted = [], []

    def arrive(self, events, size=1000):
        self.open.send(call_all(self.split, checked(self.made, as_arrow(list(events), size))))

    def advance(self, watermark):
        count, publish, show = self.stages
        count.feed(self.open.close(watermark))
        count.advance(watermark)
        counted = [element for element in count.take() if element[0] != CLOCK]
        self.counted += counted
        publish.feed(counted)
        if not self.made.chooses_randomly or not count.cells.timers:  # they hold the watermark
            publish.advance(watermark)
            show.feed(map(to_shard, publish.take()))
            show.advance(watermark)
        self.rows += show.take()


def drive(made, events, chance, **options):
    """Run all events, none of them late."""
    chain = Chain(made, chance, **options)
    waiting, size = list(events), made.steps.size
    for now in range(START - 10, START + 10 * WINDOWS + 20, chance.choice([3, 10, 25])):
        go = [event[2] // size * size <= now * SECOND or chance.random() < 0.1 for event in waiting]
        due = [*itertools.compress(waiting, go)]
        waiting = [*itertools.compress(waiting, [not each for each in go])]
        chance.shuffle(due)
        chain.arrive(due, chance.choice([1, 7, 1000]))
        chain.advance(now * SECOND)
    chain.arrive(waiting)
    chain.advance(END)
    return chain


def drive_at_once(made, events, chance, **options):
    """Run all events in a few large batches."""
    chain = Chain(made, chance, **options)
    chain.arrive(events, 10_000)
    chain.advance(END)
    return chain


def exact(chain):
    """Return what was counted before noise: (step, item) -> (contributions, people who are new)."""
    found = {}
    for _, record in chain.counted:
        (step,), batch = STEP.unpack_from(record), decode(CountBatch, record[STEP.size :])
        people = batch.counts if batch.new is None else batch.new
        for item, *numbers in zip(batch.items.tolist(), batch.counts.tolist(), people.tolist(), strict=True):
            name = (chain.made.domain or batch.names)[item]
            before = found.get((step, name), (0, 0))
            found[step, name] = tuple(a + b for a, b in zip(before, numbers, strict=True))
    return found
