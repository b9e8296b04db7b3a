"""Makes one job of many tests, since a job of a runner in other processes takes seconds before its first row.

A test is a generator here. It yields the pipeline that is to be run, gets the results, and checks them:

    @one_job("sets", CONFIGURATIONS, "doors")
    def test_rows_are_those_of_the_reference(name):
        results = yield of_elements(as_rows(events), transform(name))
        assert results.elements("rows") == ...

Where runners are in other processes, the pipelines of all selected tests with the same `job` stand side by side in one
pipeline, which the first of them runs. FnApiRunner runs each alone.
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
MARKS = {
    "flink": [pytest.mark.flink, pytest.mark.slow, pytest.mark.xdist_group("flink")],
    "prism": [pytest.mark.prism, pytest.mark.slow],
}


@dataclass(frozen=True)
class Streamed:
    """A pipeline that reads a stream; the streams of one job are merged into one, each at its own watermarks."""

    stream: TestStream
    build: Callable[[beam.PCollection], Outputs]


Checks = Generator[Callable[[beam.Pipeline], Outputs] | Streamed, Results, None]


def of_stream(stream: TestStream, made: beam.PTransform) -> Streamed:
    """Return a pipeline with a transform on a stream."""
    return Streamed(stream, lambda source: source | made.with_dead_letters())


def one_job(
    job: str,
    cases: Iterable[Any] = (),
    *quick: Any,
    runners: Iterable[str] = RUNNERS,
    elsewhere: Iterable[Any] | None = None,
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
        def marked(runner: str, case: Any) -> Any:
            marks = MARKS.get(runner, [] if case in quick or not cases else [pytest.mark.slow])
            marks = [*marks, pytest.mark.xdist_group(f"prism, {job}")] if runner == "prism" else marks
            parts = case if isinstance(case, tuple) else (case,)
            return pytest.param(runner, case, id=", ".join([runner, *(str(p) for p in parts if p != "")]), marks=marks)

        chosen = [(runner, case) for case in cases or [""] for runner in runners]
        chosen = [(runner, case) for runner, case in chosen if runner == "fn_api" or not cases or case in elsewhere]

        @pytest.mark.parametrize(("runner", "case"), [marked(*each) for each in chosen])
        def test(runner: str, case: Any, request: pytest.FixtureRequest) -> None:
            if runner == "fn_api":
                own = test.checks(case)
                found = own, _run(runner, {"alone": next(own)})["alone"]
            else:
                together = _beside_others(runner, job, request.session)
                if isinstance(together, Exception):
                    raise together
                found = together[request.node.nodeid]
            with pytest.raises(StopIteration):  # after its checks a test yields nothing more
                found[0].send(found[1])

        functools.update_wrapper(test, checks)
        del test.__wrapped__  # pytest would look for its arguments there
        test.job, test.cases, test.elsewhere = job, cases, elsewhere
        test.checks = checks if cases else lambda _: checks()
        return test

    return decorate


@functools.cache
def _beside_others(runner: str, job: str, session: pytest.Session) -> dict[str, tuple[Checks, Results]] | Exception:
    """Run the pipelines of all tests of a job, once; return what each has to check, or why there is nothing."""
    waiting = {}
    for item in session.items:
        test = getattr(item, "function", None)
        if getattr(test, "job", None) == job and item.callspec.params["runner"] == runner:
            waiting[item.nodeid] = test.checks(item.callspec.params["case"])
    try:
        results = _run(runner, {node: next(checks) for node, checks in waiting.items()})
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
