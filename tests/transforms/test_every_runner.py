"""Streams of one job are merged without a change to when each element comes."""

from apache_beam.testing import test_stream
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from every_runner import merged


def arrivals(stream: test_stream.TestStream) -> list[tuple[Timestamp, object]]:
    """Return the watermark at which each element comes."""
    now, found = MIN_TIMESTAMP, []
    for event in stream._events:
        if isinstance(event, test_stream.WatermarkEvent):
            now = event.new_watermark
        else:
            found += [(now, each.value) for each in event.timestamped_values]
    return found


def test_each_element_comes_at_its_own_watermark():
    one = (
        test_stream.TestStream()
        .add_elements(["a"])
        .advance_watermark_to(5)
        .add_elements(["b", "c"])
        .advance_watermark_to(9)
    )
    other = (
        test_stream.TestStream().advance_watermark_to(3).add_elements(["d"]).advance_watermark_to(5).add_elements(["e"])
    )
    streams = {"one": one.advance_watermark_to_infinity(), "other": other.advance_watermark_to_infinity()}
    together = merged(streams)
    assert together._events[-1].new_watermark == MAX_TIMESTAMP
    for name, stream in streams.items():
        mine = [(now, element) for now, (of, element) in arrivals(together) if of == name]
        assert mine == arrivals(stream)
    assert len(arrivals(together)) == 5
