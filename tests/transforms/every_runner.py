"""Makes one job of many tests, since a job of a runner in other processes takes seconds before its first row.

A test is a generator here. It yields the pipeline that is to be run, gets the results, and checks them:

    @one_job("sets", CONFIGURATIONS, "doors")
    def test_rows_are_those_of_the_reference(name):
        results = yield of_elements(as_rows(events), transform(name))
        assert results.elements("rows") == ...

Where runners are in other processes, the pipelines of all selected tests with the same `job` stand side by side in one
pipeline. Its first test runs it. A test that fails with these results is repeated by itself: it says what is wrong
with its own pipeline, or that it is right alone, and wrong beside the others. FnApiRunner runs each alone.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream, WatermarkEvent
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from privstream.transforms.stages import KEEP_BUNDLES_WHOLE
from runner_harness import RUNNERS, Outputs, Results, run_together

WHOLE = f"--experiments={KEEP_BUNDLES_WHOLE}"  # as in all private transforms


@dataclass(frozen=True)
class Streamed:
    """A pipeline that reads a stream; the streams of one job are merged into one, each at its own watermarks."""

    stream: TestStream
    build: Callable[[beam.PCollection], Outputs]


Checks = Generator[Callable[[beam.Pipeline], Outputs] | Streamed, Results, None]


def of_elements(elements: Iterable[Any], made: beam.PTransform) -> Callable[[beam.Pipeline], Outputs]:
    """Return a pipeline with a transform on elements that are spread over workers."""

    def build(pipeline):
        events = pipeline | "Elements" >> beam.Create(elements) | "Spread" >> beam.Reshuffle()
        return events | made.with_dead_letters()

    return build


def of_stream(stream: TestStream, made: beam.PTransform) -> Streamed:
    """Return a pipeline with a transform on a stream."""
    return Streamed(stream, lambda source: source | made.with_dead_letters())


def one_job(
    job: str,
    cases: Iterable[str] = (),
    *quick: str,
    runners: Iterable[str] = RUNNERS,
    elsewhere: Iterable[str] | None = None,
) -> Callable[[Callable[..., Checks]], Callable[..., None]]:
    """Make a test, or one for each case, of a generator: of one name on several runners.

    Args:
        job: Tests of the same job stand side by side.
        cases: Given to the generator, which takes none without them.
        quick: The cases that are quick on FnApiRunner. All are slow on the others.
        runners: Names of `RUNNERS`.
        elsewhere: The cases that go to runners in other processes, all by default. Cases whose pipelines have the same
            stages differ in what the code computes, which is the same on every runner.
    """
    cases = list(cases)
    elsewhere = cases if elsewhere is None else list(elsewhere)
    assert {*quick, *elsewhere} <= {*cases}, f"{quick} and {elsewhere} are not among {cases}"

    def decorate(checks: Callable[..., Checks]) -> Callable[..., None]:
        marked = [
            pytest.param(runner, case, id=_id(runner, case), marks=_marks(job, runner, case in quick or not cases))
            for case in cases or [""]
            for runner in runners
            if runner == "fn_api" or not cases or case in elsewhere
        ]

        @pytest.mark.parametrize(("runner", "case"), marked)
        def test(runner: str, case: str, request: pytest.FixtureRequest) -> None:
            if runner != "fn_api":
                _check_beside_others(runner, request)
            else:
                _check_alone(runner, test.checks(case))

        functools.update_wrapper(test, checks)
        del test.__wrapped__  # pytest would look for its arguments there
        test.job, test.cases, test.elsewhere = job, cases, elsewhere
        test.checks = checks if cases else lambda _: checks()
        return test

    return decorate


def _id(runner: str, case: Any) -> str:
    parts = case if isinstance(case, tuple) else (case,)
    return ", ".join([runner, *(str(part) for part in parts if part != "")])


def _marks(job: str, runner: str, quick: bool) -> list[pytest.MarkDecorator]:
    match runner:
        case "flink":
            return [pytest.mark.flink, pytest.mark.slow, pytest.mark.xdist_group("flink")]
        case "prism":
            return [pytest.mark.prism, pytest.mark.slow, pytest.mark.xdist_group(f"prism, {job}")]
        case _:
            return [] if quick else [pytest.mark.slow]


def _check_alone(runner: str, checks: Checks) -> None:
    _finish(checks, _run(runner, {"alone": next(checks)})["alone"])


def _finish(checks: Checks, results: Results) -> None:
    """Let a test check its results, after which it must yield nothing more."""
    with pytest.raises(StopIteration):
        checks.send(results)


def _check_beside_others(runner: str, request: pytest.FixtureRequest) -> None:
    found = _beside_others(runner, request.function.job, request.session)
    try:
        if isinstance(found, Exception):
            raise found
        _finish(*found[request.node.nodeid])
    except Exception as error:
        _check_alone(runner, request.function.checks(request.node.callspec.params["case"]))
        raise AssertionError("right alone, and wrong beside the other tests of its job") from error


@functools.cache
def _beside_others(runner: str, job: str, session: pytest.Session) -> dict[str, tuple[Checks, Results]] | Exception:
    """Run the pipelines of all tests of a job, once; return what each has to check, or why there is nothing."""
    waiting, yielded = {}, {}
    for item in session.items:
        test = getattr(item, "function", None)
        if getattr(test, "job", None) == job and item.callspec.params["runner"] == runner:
            waiting[item.nodeid] = test.checks(item.callspec.params["case"])
    try:
        yielded = {node: next(checks) for node, checks in waiting.items()}
        results = _run(runner, yielded)
    except Exception as error:
        return error
    return {node: (checks, results[node]) for node, checks in waiting.items()}


def _run(runner: str, yielded: dict[str, Any]) -> dict[str, Results]:
    streams = {name: each for name, each in yielded.items() if isinstance(each, Streamed)}
    if not streams:
        return run_together(runner, yielded, WHOLE)
    assert streams.keys() == yielded.keys(), "streams and bounded inputs must be different jobs"
    builds = {name: functools.partial(_build_one, each, name) for name, each in streams.items()}
    source = merged({name: each.stream for name, each in streams.items()})
    return run_together(runner, builds, "--streaming", WHOLE, source=source)


def _build_one(each: Streamed, name: str, source: beam.PCollection) -> Outputs:
    return each.build(source | "Own" >> beam.ParDo(_OnlyOf(name)))


class _OnlyOf(beam.DoFn):
    """Keeps the elements of one stream."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, named):
        name, element = named
        if name == self.name:
            yield element


def merged(streams: dict[str, TestStream]) -> TestStream:
    """Return one stream with the elements of all, as (name, element), each at the watermark at which it came."""
    moments: dict[Timestamp, list[list[TimestampedValue]]] = defaultdict(list)
    for name, stream in streams.items():
        now = MIN_TIMESTAMP
        for event in stream._events:
            if isinstance(event, WatermarkEvent):
                now = event.new_watermark
                moments[now] += []
            else:
                named = [TimestampedValue((name, each.value), each.timestamp) for each in event.timestamped_values]
                moments[now].append(named)
    source = TestStream()
    for now, bundles in sorted(moments.items(), key=lambda moment: moment[0]):
        if now > MIN_TIMESTAMP:
            source = source.advance_watermark_to(now)
        for elements in bundles:
            source = source.add_elements(elements)
    return source
