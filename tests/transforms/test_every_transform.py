"""What every transform must do: it refuses what gives no privacy, and it keeps the key at home."""

import math
import pickle
import re

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from examples import ASKED, EXAMPLES, ONE_OF_EACH, example, public_kinds
from privstream.mechanisms.noise.prf import Prf
from privstream.mechanisms.noise.sources import KeyedNoise

every_transform = pytest.mark.parametrize("name", ONE_OF_EACH)


def test_all_transforms_have_an_example():
    assert public_kinds() == {kind for kind, _ in EXAMPLES.values()}


@every_transform
def test_what_is_no_noise_source_is_refused(name):
    for noise in (None, "key", b"key", 5, KeyedNoise):
        with pytest.raises(TypeError, match=r"^noise must be a NoiseSource, such as KeyedNoise, got "):
            example(name, noise=noise)


@every_transform
def test_an_epsilon_that_promises_nothing_is_refused(name):
    for epsilon in (0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"^epsilon must be finite and > 0, got {re.escape(str(epsilon))}$"):
            example(name, epsilon=epsilon)
    for epsilon in ("1", True, None):
        with pytest.raises(TypeError, match=rf"^epsilon must be a number, got {type(epsilon).__name__}$"):
            example(name, epsilon=epsilon)


@pytest.fixture
def noise_of_a_file(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"a key for tests only, in a file")
    path.chmod(0o600)
    return KeyedNoise.from_file(path, "run")


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_pipeline_holds_the_key(name, noise_of_a_file, monkeypatch):
    """A key from a file or a variable is read by each worker: no graph holds it, nor a key that is derived from it."""
    made = example(name, noise=noise_of_a_file)
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    events = pipeline | "Input" >> beam.Create([pa.record_batch({"user": ["u"], "item": ["i"], "time": [1]})])
    _ = ({"events": events, "queries": events} if type(made) in ASKED else events) | made

    def refuse(prf):
        raise AssertionError("a key was about to leave")

    monkeypatch.setattr(Prf, "__reduce__", refuse)
    with pytest.raises(AssertionError, match="about to leave"):
        pickle.dumps(KeyedNoise(b"given as bytes, so it has to travel"))
    pipeline.to_runner_api()
