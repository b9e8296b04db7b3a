"""What the dataflow relies on holds on every runner, the harness tells the truth, and tests leave nothing behind."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import flink_job_server
import pytest
import runner_harness
from apache_beam.coders import BytesCoder
from apache_beam.metrics import Metrics
from apache_beam.runners.runner import PipelineState
from apache_beam.runners.worker import statecache
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import FixedWindows, GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.runners import launch
from runner_harness import on_every_runner, run

START = 1_700_000_000
MICROS = 1_000_000
TICK = 10
ODD_KEY = b"\xff\x00\n"


def _event(second: int) -> TimestampedValue:
    return TimestampedValue((b"user %d" % (second % 7), second), START + second)


def _rekey(group, window=beam.DoFn.WindowParam):
    user, seconds = group
    yield ODD_KEY, (window.end.micros, b"%s:%d" % (user, len(list(seconds))))


class _Monitor(beam.DoFn):
    """Decides windows in order: one timer at the least pending window end, every due window handled when it fires."""

    PENDING = BagStateSpec("test_pending", BytesCoder())
    DECIDED = ReadModifyWriteStateSpec("test_decided", BytesCoder())
    DUE = TimerSpec("test_monitor_due", TimeDomain.WATERMARK)

    def process(self, keyed, pending=beam.DoFn.StateParam(PENDING), due=beam.DoFn.TimerParam(DUE)):
        _, (end, row) = keyed
        pending.add(b"%d %s" % (end, row))
        due.set(Timestamp(micros=min(int(entry.split()[0]) for entry in pending.read())))
        Metrics.counter("test", "rows").inc()

    @on_timer(DUE)
    def decide(
        self,
        key=beam.DoFn.KeyParam,
        now=beam.DoFn.TimestampParam,
        pending=beam.DoFn.StateParam(PENDING),
        decided=beam.DoFn.StateParam(DECIDED),
        due=beam.DoFn.TimerParam(DUE),
    ):
        entries = [(int(entry.split()[0]), entry) for entry in pending.read()]
        later = [entry for entry in entries if entry[0] > now.micros]
        pending.clear()
        for _, entry in later:
            pending.add(entry)
        if later:
            due.set(Timestamp(micros=min(later)[0]))
        order = int(decided.read() or b"0")
        for end in sorted({end for end, _ in entries if end <= now.micros}):
            yield key, order, end // MICROS - START, sum(entry[0] == end for entry in entries)
            order += 1
        decided.write(b"%d" % order)


class _Clock(beam.DoFn):
    """Ticks a fixed number of times, each tick setting the next: a public clock."""

    COUNT = ReadModifyWriteStateSpec("test_ticks", BytesCoder())
    TICKS = TimerSpec("test_clock_tick", TimeDomain.WATERMARK)

    def process(self, keyed, tick=beam.DoFn.TimerParam(TICKS)):
        tick.set(Timestamp(START))

    @on_timer(TICKS)
    def fire(
        self,
        key=beam.DoFn.KeyParam,
        now=beam.DoFn.TimestampParam,
        count=beam.DoFn.StateParam(COUNT),
        tick=beam.DoFn.TimerParam(TICKS),
    ):
        ticks = int(count.read() or b"0") + 1
        count.write(b"%d" % ticks)
        if ticks < 5:
            tick.set(now + TICK)
        yield key, now.micros // MICROS - START


class _Fail(beam.DoFn):
    def process(self, element):
        raise ZeroDivisionError("on purpose")


def _ticks(keyed: beam.PCollection, name: str) -> beam.PCollection:
    return keyed | f"Own stage {name}" >> beam.Reshuffle() | f"Clock {name}" >> beam.ParDo(_Clock())


@on_every_runner
def test_monitors_see_whole_windows_in_order_and_looping_timers_tick_to_the_end(runner):
    """In one pipeline: a monitor after a GroupByKey, and two clocks of one kind."""

    def build(pipeline):
        decided = (
            pipeline
            | "Seconds" >> beam.Create(range(60))
            | "Shuffle" >> beam.Reshuffle()
            | "Events" >> beam.Map(_event)
            | "Windows" >> beam.WindowInto(FixedWindows(TICK))
            | "Per user" >> beam.GroupByKey()
            | "Rekey" >> beam.FlatMap(_rekey).with_output_types(tuple[bytes, tuple[int, bytes]])
            | "Global" >> beam.WindowInto(GlobalWindows())
            | "Monitor" >> beam.ParDo(_Monitor())
        )
        keyed = pipeline | "Keys" >> beam.Create([(b"a", b""), (b"b", b"")])
        return {"decided": decided, **{name: _ticks(keyed, name) for name in ("left", "right")}}

    results = run(runner, build)
    assert sorted(results.elements("decided")) == [(ODD_KEY, order, TICK * (order + 1), 7) for order in range(6)]
    assert {stamp // MICROS - START for _, stamp in results.outputs["decided"]} == {10, 20, 30, 40, 50, 60}
    assert results.counters == {"test:rows": 42}
    ticks = [(key, TICK * tick) for key in (b"a", b"b") for tick in range(5)]
    assert sorted(results.elements("left")) == ticks
    assert sorted(results.elements("right")) == ticks


@on_every_runner
def test_a_failed_pipeline_raises(runner):
    with pytest.raises((ZeroDivisionError, RuntimeError)):
        run(runner, lambda pipeline: pipeline | beam.Create([1]) | beam.ParDo(_Fail()))


@pytest.mark.flink
@pytest.mark.xdist_group("flink")
def test_jobs_that_are_left_on_flink_are_found_and_ended():
    runner_harness.require("flink")

    def endless():
        """Run a job that has no end, since it has checkpoints."""
        options = runner_harness.options("flink", "--streaming", "--checkpointing_interval=1000")
        pipeline = beam.Pipeline(options=options)
        _ = pipeline | beam.Create([1]) | beam.Map(str)
        job = pipeline.run()
        while job.state != PipelineState.RUNNING:
            time.sleep(0.1)
        return job

    cancelled = endless()
    cancelled.cancel()
    while not PipelineState.is_terminal(cancelled.state):
        time.sleep(0.1)
    server = flink_job_server.endpoint()
    assert flink_job_server.end_jobs() == [], "it counts as ended, and goes on"
    endless()
    assert flink_job_server.endpoint() != server
    assert len(flink_job_server.end_jobs()) == 1


class _Count(beam.DoFn):
    def process(self, element):
        Metrics.counter("test", "elements").inc()
        yield element


def test_parts_of_one_job_have_their_own_outputs_and_counters():
    def build(numbers):
        return lambda pipeline: pipeline | beam.Create(numbers) | beam.ParDo(_Count())

    parts = runner_harness.run_together("fn_api", {"few": build([1, 2]), "many, of them": build(range(12))})
    assert sorted(parts["few"].elements()) == [1, 2]
    assert sorted(parts["many, of them"].elements()) == list(range(12))
    assert [part.counters for part in parts.values()] == [{"test:elements": 2}, {"test:elements": 12}]


@pytest.mark.parametrize("required", ["1", "prism", "fn_api, prism"])
def test_a_required_runner_that_is_missing_fails(monkeypatch, required):
    monkeypatch.setenv("PRISM_LOCATION", "/no/such/prism")
    monkeypatch.setenv("PRIVSTREAM_REQUIRE_RUNNERS", required)
    with pytest.raises(pytest.fail.Exception, match=r"prism is required here: no Prism binary at /no/such/prism"):
        runner_harness.require("prism")


@pytest.mark.parametrize("required", ["", "flink"])
def test_a_missing_runner_that_is_not_required_skips(monkeypatch, required):
    monkeypatch.setenv("PRISM_LOCATION", "/no/such/prism")
    monkeypatch.setenv("PRIVSTREAM_REQUIRE_RUNNERS", required)
    with pytest.raises(pytest.skip.Exception, match=r"run deploy/get_prism\.sh"):
        runner_harness.require("prism")


def test_flink_without_java_or_jar_says_which(monkeypatch):
    monkeypatch.setenv("FLINK_JOB_SERVER_JAR", "/no/such.jar")
    monkeypatch.setattr(runner_harness.shutil, "which", lambda name: f"/bin/{name}")
    assert "deploy/get_flink_job_server.sh" in runner_harness.missing("flink")
    monkeypatch.setattr(runner_harness.shutil, "which", lambda name: None)
    assert runner_harness.missing("flink").startswith("no Java")


def test_unknown_runners_are_refused():
    with pytest.raises(ValueError, match=r"runner must be one of fn_api, .*, got spark"):
        runner_harness.missing("spark")


class Remember(beam.DoFn):
    """Keep values, and tell how many there are."""

    SEEN = BagStateSpec("seen", BytesCoder())

    def process(self, element, seen=beam.DoFn.StateParam(SEEN)) -> Iterator[int]:
        seen.add(element[1])
        yield len(list(seen.read()))


@pytest.mark.parametrize(("arguments", "cached"), [([], False), (["--max_cache_memory_usage_mb=1"], True)])
def test_state_is_weighed_only_where_a_cache_is_asked_for(arguments, cached, monkeypatch):
    weights = []
    theirs = statecache.get_deep_size
    monkeypatch.setattr(statecache, "get_deep_size", lambda *values: weights.append(theirs(*values)) or weights[-1])
    options = launch.parse_beam_options(arguments)
    launch.run(options, lambda pipeline: pipeline | beam.Create([(b"key", b"value")]) | beam.ParDo(Remember()))
    assert bool(weights) is cached


TESTS = Path(__file__).parents[1]
LEAVES_FOLDERS = """
import subprocess, sys, tempfile

def test_that_fails():
    tempfile.mkdtemp()
    subprocess.run([sys.executable, "-c", "import tempfile; tempfile.mkdtemp()"], check=True)
    assert False, tempfile.gettempdir()
"""


def test_these_tests_have_a_temporary_folder_of_their_own() -> None:
    folder = Path(tempfile.gettempdir())
    assert folder.name.startswith("privstream-tests-")
    assert os.environ["TMPDIR"] == str(folder)
    assert f"-Djava.io.tmpdir={folder}" in os.environ["JAVA_TOOL_OPTIONS"]
    assert len(str(folder)) < 60, "paths of sockets have at most 107 bytes"


@pytest.mark.slow
def test_nothing_is_left_by_tests_that_fail_in_a_worker(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (killed := temporary / f"privstream-tests-{10**9}-killed").mkdir()
    (running := temporary / f"privstream-tests-{os.getpid()}-running").mkdir()
    for folder in (killed, running):
        os.utime(folder, (0, 0))
    (tmp_path / "test_inner.py").write_text(LEAVES_FOLDERS)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    inside = {"TMPDIR": str(temporary), "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-n", "1", f"--basetemp={tmp_path / 'base'}"]
    done = subprocess.run(
        [*command, "test_inner.py"], cwd=tmp_path, env=outside | inside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and f"AssertionError: {temporary}/privstream-tests-" in done.stdout, done.stdout
    assert list(temporary.iterdir()) == [running]
