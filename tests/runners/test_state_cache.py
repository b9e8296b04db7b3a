"""The runner on this machine caches as much state as is asked for, and by default none."""

from collections.abc import Iterator

import apache_beam as beam
import pytest
from apache_beam.coders import BytesCoder
from apache_beam.runners.worker import statecache
from apache_beam.transforms.userstate import BagStateSpec
from privstream.pipelines.runners import launch


class Remember(beam.DoFn):
    """Keep values, and tell how many there are."""

    SEEN = BagStateSpec("seen", BytesCoder())

    def process(self, element, seen=beam.DoFn.StateParam(SEEN)) -> Iterator[int]:
        seen.add(element[1])
        yield len(list(seen.read()))


@pytest.mark.parametrize(("arguments", "cached"), [([], False), (["--max_cache_memory_usage_mb=1"], True)])
def test_state_is_weighed_only_where_a_cache_is_asked_for(
    arguments: list[str], cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    theirs = statecache.get_deep_size
    monkeypatch.setattr(statecache, "get_deep_size", lambda *values: weights.append(theirs(*values)) or weights[-1])
    options = launch.parse_beam_options(arguments)
    launch.run(options, lambda pipeline: pipeline | beam.Create([(b"key", b"value")]) | beam.ParDo(Remember()))
    assert bool(weights) is cached
