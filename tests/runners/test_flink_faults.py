"""Whatever breaks while a private pipeline runs on a cluster: no row is lost, changed, or published with other noise.

One stream goes through all that can happen: each test lets it go on by a window, breaks something, sees that the job
has gone back to a checkpoint, and waits for the next window. Every row that the sink was ever given counts, also those
of attempts that were rolled back. Counts depend on all charges before them: they would differ if a person's counter had
lost a charge, or had one twice.
"""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator

import paced_stream
import pytest
from flink_cluster_jobs import Cluster, wait_until
from listening import descendants, elsewhere, listeners
from paced_stream import Stream, dead, kept, run_locally, window_files

pytestmark = [pytest.mark.slow, pytest.mark.flink, pytest.mark.xdist_group("flink"), pytest.mark.timeout(600)]

WINDOWS = 14  # two for each test
CHECKPOINT_SECONDS = 60
"""For which a checkpoint may hang. The first one after a fault waits until Python workers have started, which takes
long where other tests use the machine. One that runs out of time would take the job back to that, again and again."""


class Run:
    """A stream of which a test lets some windows through, and the job that watches it; there are several in turn."""

    def __init__(self, cluster: Cluster, stream: Stream, expected: list) -> None:
        self.cluster, self.stream, self.expected = cluster, stream, set(expected)
        self.windows, self.failed = 0, False
        stream.release(0)
        self.job = cluster.submit(stream, checkpoint_seconds=CHECKPOINT_SECONDS)

    def go_on(self, windows: int = 1) -> None:
        """Wait for the rows of so many more windows, while half of the next one has come."""
        self.windows += windows
        self.stream.release(self.windows + 0.5)
        self.job.wait_for_windows(self.windows)
        assert set(self.rows()) <= self.expected

    def rows(self) -> list:
        """Return all rows that the sink was ever given."""
        assert dead(self.stream.folder) == []
        return kept(self.stream.folder)

    @contextlib.contextmanager
    def fault(self) -> Iterator[float]:
        """Let the block break something in mid-window; it gets the time since when. The job then goes back, and on."""
        self.go_on()
        since = time.time()
        yield since
        self.stream.release(self.windows + 1.5)  # whoever has nothing to do does not see that a worker is gone
        self.job.wait_for_restart(since)
        self.go_on()

    def resume(self, path: str, *extra: str) -> None:
        """Go on with another job, from a savepoint or checkpoint."""
        self.job = self.cluster.submit(self.stream, f"--resume={path}", *extra, checkpoint_seconds=CHECKPOINT_SECONDS)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The rows of a run that nothing happens to, on another runner, and the files that it writes for each window."""
    folder = tmp_path_factory.mktemp("expected")
    rows = run_locally(folder, windows=WINDOWS, more=True)
    files = window_files(folder)
    assert len(files) == WINDOWS + 1
    assert files["_END"] == b""
    assert all(len(file.splitlines()) >= 2 for name, file in files.items() if name != "_END")
    return rows, files


@pytest.fixture(scope="module")
def only_run(flink_cluster, expected, tmp_path_factory):
    stream = Stream(tmp_path_factory.mktemp("stream"), windows=WINDOWS, more=True)
    yield Run(flink_cluster, stream, expected[0])
    flink_cluster.cancel_all()


@pytest.fixture
def running(request, only_run):
    """The run, unless a test before this one has failed: what became of the stream is unknown then."""
    if only_run.failed:
        pytest.fail("a test before this one has failed, on the same stream", pytrace=False)
    failures = request.session.testsfailed
    yield only_run
    only_run.failed = request.session.testsfailed > failures


def test_what_is_compared_depends_on_each_charge(expected, tmp_path, monkeypatch):
    monkeypatch.setattr(paced_stream, "MAX_HITS", 2)
    with_less = run_locally(tmp_path, windows=WINDOWS, more=True)
    for name, number in (("clock", "people"), ("status", "people"), ("alerts", "estimate")):
        rows = [row for of, row in expected[0] if of == name]
        assert len({row.window_start for row in rows}) >= WINDOWS
        others = {row[:3]: getattr(row, number) for of, row in with_less if of == name}
        assert sum(others.get(row[:3]) != getattr(row, number) for row in rows) > 10


def test_nothing_happens(running):
    """Nor does anything listen to other machines: job and task managers, workers, this job server."""
    running.go_on(2)
    running.job.wait_for_checkpoint()
    found = listeners([*running.cluster.processes(), *descendants(os.getpid())])
    assert sum(each.program == "java" for each in found) > 10
    assert any(each.program.startswith("python") for each in found)
    assert elsewhere(found) == []
    assert len(running.rows()) == len(set(running.rows())), "without a fault the sink is given each row once"


def test_a_python_worker_is_killed(running):
    with running.fault():
        os.kill(running.cluster.workers()[-1], signal.SIGKILL)


def test_the_sink_is_out_of_order_for_a_while(running):
    folder = running.stream.folder
    with running.fault():
        (folder / "broken").touch()
        running.stream.release(running.windows + 1.5)
        wait_until((folder / "refused").exists, "a row to be refused")
        refused = (folder / "refused").stat().st_size
        wait_until(lambda: (folder / "refused").stat().st_size > refused, "another attempt")
        (folder / "broken").unlink()


def test_a_task_manager_is_killed_in_mid_window(running):
    with running.fault():
        running.cluster.kill("task-manager-1")
        running.cluster.start_again("task-manager-1")


def test_a_checkpoint_that_hangs_takes_the_job_back_to_the_last(running):
    stalled = running.stream.folder / "stalled"
    with running.fault() as since:
        stalled.touch()
        running.job.wait_for_restart(since)
        stalled.unlink()


def test_a_savepoint_is_refused_with_other_options_and_resumed_with_another_parallelism(running, monkeypatch):
    """As when a job is upgraded: no gap, nothing twice, and nothing of the version that was refused."""
    running.go_on()
    cluster = running.cluster
    savepoint = cluster.call("suspend", running.job.number).strip()
    running.job.wait_for_state("FINISHED")
    before = Counter(running.rows())
    with monkeypatch.context() as patch:
        patch.setattr(paced_stream, "MAX_HITS", 2)
        running.resume(savepoint)
    running.stream.release(running.windows + 1.5)
    refused = running.job.number
    wait_until(lambda: "other options" in cluster.jobs.trouble(refused), "the first step that reads state")
    assert Counter(running.rows()) == before, "nothing is published of other options"
    cluster.cancel_all()
    running.resume(savepoint, "--parallelism=1")
    running.go_on()
    after = Counter(running.rows())
    assert all(after[row] == before.get(row, 1) for row in after), "nothing is repeated"


def test_a_cancelled_job_goes_on_from_its_last_checkpoint_to_the_end(running, expected):
    """One of its workers is killed before it has reported to the cluster, which would wait for it for ever."""
    cluster = running.cluster
    running.job.wait_for_checkpoint()
    cluster.call("cancel", running.job.number)
    running.job.wait_for_state("CANCELED")
    before = set(cluster.workers())
    kept = (cluster.run / "checkpoints" / running.job.number).glob("chk-*/_metadata")  # one under way may be discarded
    running.resume(str(max(kept, key=lambda file: int(file.parent.name.removeprefix("chk-"))).parent))
    wait_until(lambda: set(cluster.workers()) - before, "a worker to start")
    os.kill(min(set(cluster.workers()) - before), signal.SIGKILL)
    running.job.finish()
    assert (sorted(set(running.rows())), window_files(running.stream.folder)) == expected
