"""Where Beam runs a pipeline on a runner that cannot keep our promises, every transform refuses before it publishes."""

import apache_beam as beam
import pytest
import runner_harness
from apache_beam.coders import BytesCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from examples import ONE_OF_EACH, example, with_inputs
from grids import some_quick

every_transform = pytest.mark.parametrize("name", ONE_OF_EACH)
RULE = "^runner must not be BundleBasedDirectRunner: .* name PrismRunner$"


@every_transform
def test_the_runner_is_refused_by_name(name):
    made = example(name)
    _, given = with_inputs(made, "--runner=BundleBasedDirectRunner")
    with pytest.raises(ValueError, match=RULE):
        _ = given | made


@every_transform
def test_a_switch_that_will_take_it_for_a_test_stream_is_refused(name):
    made = example(name)
    pipeline, given = with_inputs(made, "--runner=DirectRunner")
    _ = given | "Before" >> made
    _ = pipeline | "Elsewhere" >> test_stream.TestStream().advance_watermark_to_infinity()
    with pytest.raises(ValueError, match=RULE):
        _ = given | "After" >> made


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


@some_quick("name", ONE_OF_EACH, "heavy hitters", "queries")
def test_what_makes_the_switch_take_it_later_is_refused_when_the_pipeline_runs(name):
    made = example(name)
    pipeline, given = with_inputs(made, "--runner=DirectRunner")
    _ = given | made | "Publish" >> beam.Map(publish)
    keyed = pipeline | "Others" >> beam.Create([(b"key", b"value")])
    _ = keyed | beam.ParDo(WithClockOfTheDay())
    PUBLISHED.clear()
    with pytest.raises(Exception, match="runner must not be BundleBasedDirectRunner"):
        pipeline.run().wait_until_finish()
    assert PUBLISHED == []


def test_a_stream_that_is_added_later_is_refused_when_the_pipeline_runs():
    made = example("heavy hitters by clock")
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=DirectRunner"]))
    start = made.steps.first * made.steps.size / 1e6
    crowd = [TimestampedValue((f"u{i}", "x"), start + 1) for i in range(60)]
    _ = pipeline | beam.Create(crowd) | beam.Map(lambda each: each) | made | "Publish" >> beam.Map(publish)
    _ = pipeline | "Elsewhere" >> test_stream.TestStream().advance_watermark_to_infinity()
    PUBLISHED.clear()
    with pytest.raises(Exception, match="runner must not be BundleBasedDirectRunner"):
        pipeline.run().wait_until_finish()
    assert PUBLISHED == []


def test_other_runners_are_taken():
    made = example("heavy hitters by clock")
    start = made.steps.first * made.steps.size / 1e6

    def build(pipeline):
        crowd = [TimestampedValue((f"u{i}", "x"), start + 1) for i in range(60)]
        return pipeline | beam.Create(crowd) | beam.Map(lambda each: each) | made

    assert len(runner_harness.run("fn_api", build).elements()) == 1
