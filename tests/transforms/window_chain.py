"""The stages of transforms that answer in every window (sets, histograms, flags), driven by hand."""

from event_forms import SECOND, as_arrow, checked
from tiny_runner import OpenWindows, call_all, dofns_of, started

CLOSING = ("LastPresence", "BoundRows", "ToClock")
STAGES = ("TrackMembers", "PublishCardinality", "LimitRows", "PublishHistogram", "RaiseFlags")


def drive(made, events, chance, *, crashes, workers=2):
    """Run all stages, with bundles that fail, in random order along a random watermark; return them."""
    fns, steps = dofns_of(made), made.steps
    stages = [started(fns[name], chance, crashes=crashes, workers=workers) for name in STAGES if name in fns]
    (split,) = [fns[name] for name in ("SplitPresence", "SplitRows", "CountEvents") if name in fns]
    (closing,) = [OpenWindows(fns[name], steps) for name in CLOSING if name in fns]
    waiting, watermark = list(events), (steps.first or 0) * steps.size
    while watermark < steps.end * steps.size + 5 * SECOND:
        watermark += chance.choice([1, 5, 10, 80]) * SECOND
        due = [event for event in waiting if event[2] // steps.size * steps.size <= watermark]
        waiting = [event for event in waiting if event not in due]
        closing.send(call_all(split, checked(made, as_arrow(due, chance.choice([1, 7, 1000])))))
        elements = closing.close(watermark)
        for stage in stages:
            stage.feed(elements)
            stage.advance(watermark)
            elements = stage.take() if stage is not stages[-1] else []
    return stages
