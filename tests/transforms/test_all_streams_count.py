"""What other streams there are decides which events of a person count, and where a person may have been instead."""

import numpy as np
import pytest
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    ContinualHistogram,
    Domain,
    KeyedCounts,
    NumericQuantiles,
    SetCardinality,
    ShiftingHeavyHitters,
    ThresholdFlags,
    TopKWithGap,
)

RUN = {"epsilon": 1.0, "window": 60, "start": 0, "end": 600, "noise": KeyedNoise(b"a key for tests only")}
PETS = {"domain": Domain(["cat", "dog", "hen"])}
PEOPLE = {"unit": "person", "max_contributions": 3}
HITTERS = {"delta": 1e-6, "max_hits": 2, "horizon": 10, "streams_per_person": 1, "method": "clock", "count_share": 0.0}
MADE = {
    "heavy hitters": (ShiftingHeavyHitters, HITTERS),
    "heavy hitters of a list": (ShiftingHeavyHitters, HITTERS | PETS),
    "heavy hitters by counts": (ShiftingHeavyHitters, HITTERS | {"method": "counts"}),
    "counts": (KeyedCounts, {"delta": 1e-6, "max_contributions": 2}),
    "quantiles": (NumericQuantiles, {"delta": 1e-6, "max_contributions": 2, "low": 0, "high": 9}),
    "top-k": (TopKWithGap, PETS | {"top": 2, "streams_per_person": 1}),
    "top-k without a list": (TopKWithGap, {"delta": 1e-6, "top": 2, "streams_per_person": 1}),
    "histogram": (ContinualHistogram, PETS | PEOPLE),
    "flags": (ThresholdFlags, PETS | PEOPLE | {"thresholds": 10}),
    "cardinality": (SetCardinality, {"leave_values": ("out",), "max_updates": 100}),
}


def noise_of(made):
    """Return words that are drawn for a stream, by everything that enters their label."""
    if isinstance(made, TopKWithGap):
        source = made.answer.noise
    elif isinstance(made, ShiftingHeavyHitters):
        source = made.answer.noise if made.method == "counts" else made.answer.monitor._source(made.noise)
    else:
        counting = dict.fromkeys((KeyedCounts, NumericQuantiles), "_counting_noise")
        drawn = counting.get(type(made))
        source = made._noise() if drawn is None else getattr(made, drawn)
    return source.derive("stream", "a").words(4)


@pytest.mark.parametrize("name", MADE)
def test_another_list_of_streams_draws_other_noise(name):
    """Limits are over all streams: with another list other people count in each, and equal noise would show who."""
    kind, arguments = MADE[name]
    drawn = [
        noise_of(kind(**RUN, **arguments, streams=streams)) for streams in (("a", "b"), ("a", "b", "c"), ("a", "c"))
    ]
    assert all(np.all(one != other) for i, one in enumerate(drawn) for other in drawn[:i])
    again = noise_of(kind(**RUN, **arguments, streams=("b", "a")))
    assert np.array_equal(again, drawn[0])  # the order says nothing


def test_events_with_streams_draw_other_noise_than_those_without():
    """Where events have streams, those of others than the nameless one are not counted in it."""
    without = {name: value for name, value in HITTERS.items() if name != "streams_per_person"}
    for method in ("clock", "counts"):
        one, other = (ShiftingHeavyHitters(**RUN, **given | {"method": method}) for given in (without, HITTERS))
        assert not np.array_equal(noise_of(one), noise_of(other))


def test_another_start_of_counting_draws_other_noise():
    arguments = RUN | {"delta": 1e-6, "max_hits": 2, "participation_cap": 3, "end": None, "method": "clock"}
    assert np.all(
        noise_of(ShiftingHeavyHitters(**arguments)) != noise_of(ShiftingHeavyHitters(**arguments | {"start": 60}))
    )


@pytest.mark.parametrize("method", ["direct_counter", "henzinger_sricharan_steiner"])
@pytest.mark.parametrize(("streams", "each", "changed"), [("a", 1, 1), ("ab", 1, 2), ("abc", 2, 3), ("abcdef", 2, 4)])
def test_who_is_replaced_may_have_been_in_other_streams(method, streams, each, changed):
    made = SetCardinality(
        **RUN,
        leave_values=("out",),
        max_updates=100,
        method=method,
        streams=tuple(streams),
        streams_per_person=each,
        neighbouring="replace_one",
    )
    algorithm = made.mechanism.algorithm
    direct = method == "direct_counter"
    in_one_stream = algorithm.horizon / algorithm.law.scale if direct else algorithm.instance(0).epsilon
    assert changed * in_one_stream == pytest.approx(made.guarantee.epsilon, rel=1e-9)
