"""The stages of transforms that answer in every window (sets, histograms, flags), driven by hand."""

import itertools

from event_forms import SECOND, as_arrow, checked
from privstream.transforms.batches import StepKey
from privstream.transforms.timing.clocked import ONE_KEY, StartClocks
from tiny_runner import Stage, call_all, dofns_of

STAGES = (
    *("LastPresence", "TrackMembers", "PublishCardinality"),
    *("BoundRows", "LimitRows", "PublishHistogram", "RaiseFlags"),
)


def drive(made, events, chance, *, crashes, workers=2):
    """Run all stages, with bundles that fail, in random order along a random watermark; return them."""
    fns = dofns_of(made)
    stages = [Stage(fns[name], chance, crashes=crashes, workers=workers) for name in STAGES if name in fns]
    stages[-1].feed(call_all(StartClocks((ONE_KEY,)), [b""]))
    steps, markers = made.steps, {}
    waiting, watermark = list(events), (steps.first or 0) * steps.size

    def arrive(some):
        batches = checked(made, as_arrow(some, chance.choice([1, 7, 1000])))
        if len(stages) == 1:
            stages[0].feed(call_all(fns["CountEvents"], batches))
            return
        keyed_batches = call_all(fns.get("SplitPresence") or fns["SplitRows"], batches)
        for key, (digest, _) in keyed_batches:
            markers.setdefault(key, []).append(digest)
        stages[0].feed(keyed_batches)

    while watermark < steps.end * steps.size + 5 * SECOND:
        watermark += chance.choice([1, 5, 10, 80]) * SECOND
        due = [event for event in waiting if event[2] // steps.size * steps.size <= watermark]
        waiting = [event for event in waiting if event not in due]
        arrive(due)
        ready = [key for key in markers if steps.decision_time(StepKey.from_bytes(key).step).micros <= watermark]
        stages[0].feed([(key, (b"".join(markers.pop(key)), b"")) for key in ready])
        for stage, following in itertools.pairwise(stages):
            stage.advance(watermark)
            following.feed(stage.take())
        stages[-1].advance(watermark)
    return stages
