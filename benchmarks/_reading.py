"""Reads, checks and keys a file as a question about all of its fields does, and answers nothing.

Usage: python benchmarks/_reading.py PATH WINDOW START WINDOWS
"""

import sys

import apache_beam as beam
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.runners import launch
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.readers import ReadEvents
from privstream.transforms.batches import KeyedBatch
from privstream.transforms.events.event_fields import NUMBER, TEXT, EventFields
from privstream.transforms.events.gathering import GatherRows
from privstream.transforms.events.split_stages import SplitEvents
from privstream.transforms.timing.steps import Steps


def read(path: str, window: int, start: int, windows: int) -> None:
    """Read events with the fields user, item, time and ms."""
    steps = Steps.of(window=window, start=start, windows=windows)
    split = SplitEvents(steps=steps, noise=KeyedNoise.random("reading"), shards=4, groups=1)

    def build(pipeline: beam.Pipeline) -> None:
        events = (pipeline | ReadEvents(path, FieldMapping(value="ms"))).events
        gathered = events | beam.ParDo(GatherRows(EventFields(user=TEXT, value=NUMBER)))
        gathered | beam.ParDo(split).with_output_types(KeyedBatch)

    launch.run(launch.parse_beam_options([]), build)


if __name__ == "__main__":
    read(sys.argv[1], *map(int, sys.argv[2:]))
