"""What every transform must do: refuse what gives no privacy, and runners that break promises; keep the key at home."""

import inspect
import math
import pickle
import re
from datetime import datetime
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pytest
import runner_harness
from apache_beam.coders import BytesCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import FixedWindows, GlobalWindows
from examples import EXAMPLES, ONE_OF_EACH, START, example, public_kinds, with_input
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise, PrfNoise
from privstream.mechanisms.privacy.guarantee import CONTRIBUTIONS_HASHED, ITEMS_HASHED, KEYED_NOISE, PEOPLE_HASHED

every_transform = pytest.mark.parametrize("name", ONE_OF_EACH)


def test_all_transforms_have_an_example():
    assert public_kinds() == {kind for kind, _ in EXAMPLES.values()}


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
    _ = events | made

    def refuse(noise):
        raise AssertionError("a key was about to leave")

    monkeypatch.setattr(PrfNoise, "__getstate__", refuse)
    with pytest.raises(AssertionError, match="about to leave"):
        pickle.dumps(KeyedNoise(b"given as bytes, so it has to travel"))
    pipeline.to_runner_api()


RULE = "^runner must not be BundleBasedDirectRunner: .* name PrismRunner$"


@every_transform
def test_the_runner_is_refused_by_name(name):
    made = example(name)
    _, given = with_input("--runner=BundleBasedDirectRunner")
    with pytest.raises(ValueError, match=RULE):
        _ = given | made


class WithClockOfTheDay(beam.DoFn):
    """A step of somebody else, for which the switch takes the refused runner too."""

    KEPT = BagStateSpec("kept", BytesCoder())
    DUE = TimerSpec("due", TimeDomain.REAL_TIME)

    def process(self, element, kept=beam.DoFn.StateParam(KEPT), due=beam.DoFn.TimerParam(DUE)):
        kept.add(element[0])
        due.set(0)

    @on_timer(DUE)
    def on_due(self):
        """Do nothing."""


PUBLISHED = []


def publish(row) -> None:
    PUBLISHED.append(row)


@some_quick("name", [name for name in ONE_OF_EACH if name != "queries"], "heavy hitters", "top-k")
def test_what_makes_the_switch_take_it_later_is_refused_when_the_pipeline_runs(name):
    made = example(name)
    pipeline, given = with_input("--runner=DirectRunner")
    _ = given | made | "Publish" >> beam.Map(publish)
    keyed = pipeline | "Others" >> beam.Create([(b"key", b"value")])
    _ = keyed | beam.ParDo(WithClockOfTheDay())
    PUBLISHED.clear()
    with pytest.raises(Exception, match="runner must not be BundleBasedDirectRunner"):
        pipeline.run().wait_until_finish()
    assert PUBLISHED == []


@every_transform
def test_windows_of_beam_are_refused(name):
    made = example(name)
    _, given = with_input()
    within = given | "Within" >> beam.WindowInto(FixedWindows(60))
    with pytest.raises(ValueError, match=r"^input must be in the global window, got FixedWindows: "):
        _ = within | "Refused" >> made
    _ = within | "Again" >> beam.WindowInto(GlobalWindows()) | "Taken" >> made


SECRET = "zaphod"


class Visit(NamedTuple):
    user: str
    item: str
    time: int
    value: int = 5
    more: Any = SECRET


def run(made, inputs):
    """Return the results of one pipeline with the transform on each of several inputs."""

    def build(pipeline):
        outputs = {}
        for name, events in inputs.items():
            given = pipeline | name >> beam.Create(events, reshuffle=False)
            published = given | f"Publish {name}" >> made.with_dead_letters()
            outputs |= {f"{name} rows": published.rows, f"{name} dead": published.dead_letters}
        return outputs

    return runner_harness.run("fn_api", build)


@some_quick("name", [name for name in ONE_OF_EACH if name != "queries"], "heavy hitters", "top-k")
def test_it_is_ignored(name):
    people = [{"user": str(1 + i % 60), "item": "1", "time": START, "value": 5} for i in range(60)]
    inputs: dict[str, list[Any]] = {"without": [pa.RecordBatch.from_pylist(people)]}
    for more in (SECRET, None):
        rows = [{**row, "more": more} for row in people]
        inputs |= {f"batch, {more}": [pa.RecordBatch.from_pylist(rows)], f"rows, {more}": [Visit(**r) for r in rows]}
    results = run(example(name), inputs)
    assert results.elements("without rows")
    for each in inputs:
        assert sorted(results.elements(f"{each} rows")) == sorted(results.elements("without rows"))
        assert not results.elements(f"{each} dead")


DATE = datetime(2024, 1, 1)
WRONG = [object(), "x", b"x", -1, 0, 1.5, 2**70, math.nan, True, None, [], (1,), ["a", "a"], {"a": 1}, DATE]
OTHER = {"horizon": "windows", "start": "end", "period": "end", "min_alerts": "epsilon"}
"""What an error may name as well: the argument that does not fit to it."""


@some_quick("name", ONE_OF_EACH, *(name for name in ONE_OF_EACH if name not in ("cardinality", "histogram")))
def test_errors_of_arguments_name_the_argument(name):
    """Whatever is given: what is wrong is refused in the words of the argument, and no inner step stumbles over it."""
    fields, refused = inspect.signature(EXAMPLES[name][0]).parameters, 0
    for field in fields:
        for wrong in WRONG:
            try:
                example(name, **{field: wrong})
                assert field != "noise", f"noise={wrong!r} is no source"
            except (TypeError, ValueError) as error:
                refused += 1
                assert re.search(rf"\b({field}|{OTHER.get(field, field)})\b", str(error)), f"{field}={wrong!r}: {error}"
    assert refused > 5 * len(fields)


UNHASHED = {"quantiles of events", "alerts by sparse vector", "histogram", "flags", "ranges", "predecessors", "queries"}
OF_EVENTS = UNHASHED | {"counts of events"}
FOUND = {"heavy hitters", "counts", "counts since the start", "counts of the last windows", "top-k"}
ITEMS_FOUND = FOUND | {"heavy hitters by status", "heavy hitters by clock", "counts of events"}
REMEMBERED = FOUND | {"counts of a list", "largest counts of a list"}
"""What has no list of items knows them by hashes; what counts once for a key, or finds it, contributions as well."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_the_guarantee_rests_on_is_said(name, check_proof):
    hashed = (PEOPLE_HASHED, name not in OF_EVENTS), (ITEMS_HASHED, name in ITEMS_FOUND)
    expected = [KEYED_NOISE, *(what for what, is_so in (*hashed, (CONTRIBUTIONS_HASHED, name in REMEMBERED)) if is_so)]
    guarantee = example(name).guarantee
    check_proof(guarantee.proof)
    assert list(guarantee.caveats) == guarantee.to_dict()["caveats"] == expected
