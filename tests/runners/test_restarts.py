"""Why Flink restarted a job is said in plain words, and told to the command that waits for the job."""

import json
import pickle
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.pipelines.command import UsageError
from privstream.pipelines.runners import flink
from privstream.pipelines.runners.flink import name_job, restart_cause, submitted_job

FLINK = "org.apache.flink"
TRACES = {
    "direct memory": [
        "java.lang.OutOfMemoryError: Cannot reserve 16777216 bytes of direct buffer memory (allocated: 410216460, "
        "limit: 416391183)\n\tat java.base/java.nio.Bits.reserveMemory(Bits.java:178)",
        f"{FLINK}.util.FlinkRuntimeException: Direct buffer memory. The direct out-of-memory error has occurred.",
        "org.apache.beam.vendor.grpc.v1p69p0.io.netty.util.internal.OutOfDirectMemoryError: failed to allocate 4194304 "
        "byte(s) of direct memory (used: 415236103, max: 416391183)",
        "java.lang.RuntimeException: Error received from SDK harness for instruction 41: Traceback (most recent call "
        "last):\ngrpc._channel._MultiThreadedRendezvous: <_MultiThreadedRendezvous of RPC that terminated with:\n"
        '\tstatus = StatusCode.UNKNOWN\n\tdetails = "Server sendMessage() failed with Error"\n'
        "RuntimeError: Server sendMessage() failed with Error",
    ],
    "heap memory": [
        "java.lang.OutOfMemoryError: Java heap space\n\tat java.base/java.util.Arrays.copyOf(Arrays.java:3537)",
        "java.lang.OutOfMemoryError: GC overhead limit exceeded",
        "java.lang.RuntimeException: Error received from SDK harness for instruction 8: Traceback (most recent call "
        "last):\nRuntimeError: grpc._channel._MultiThreadedRendezvous: <_MultiThreadedRendezvous of RPC that "
        'terminated with:\n\tstatus = StatusCode.UNKNOWN\n\tdetails = "Application error processing RPC"',
    ],
    "memory for classes": ["java.lang.OutOfMemoryError: Metaspace. The metaspace out-of-memory error has occurred."],
    "Python worker ran out of memory": [
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.73 GiB for an array with shape (500000000,)",
        "pyarrow.lib.ArrowMemoryError: malloc of size 68719476736 failed",
    ],
    "Python worker ended or was killed": [
        "java.util.concurrent.ExecutionException: java.lang.IllegalStateException: SDK harness closed connection",
        "org.apache.beam.vendor.grpc.v1p69p0.io.grpc.StatusRuntimeException: CANCELLED: client cancelled",
    ],
    "task manager ended or was killed": [
        f"{FLINK}.runtime.io.network.netty.exception.RemoteTransportException: Lost connection to task manager "
        "'127.0.0.1/127.0.0.1:41935 [ task-manager-1 ] '. This indicates that the remote task manager was lost.",
        "java.util.concurrent.TimeoutException: Heartbeat of TaskManager with id task-manager-1 timed out.",
        f"{FLINK}.runtime.jobmaster.JobMasterException: TaskManager with id task-manager-0(127.0.0.1:33115) is no "
        "longer reachable.",
    ],
    "the state of PublishFound was written by another version or with other options": [
        "java.lang.RuntimeException: Error received from SDK harness for instruction 7: Traceback (most recent call "
        "last):\nprivstream.mechanisms.errors.SnapshotError: snapshot version of found keys of streams must be 1, got 2"
        "\nThe above exception was the direct cause of the following exception:\nprivstream.mechanisms.errors."
        "SnapshotError: state of PublishFound cannot be used: snapshot version of found keys of streams must be 1",
    ],
    "too few free slots": [
        f"{FLINK}.runtime.jobmanager.scheduler.NoResourceAvailableException: Could not acquire the minimum required "
        "resources."
    ],
    "disk is full": ["java.io.IOException: No space left on device"],
    "a checkpoint took longer than --checkpoint_timeout_millis": [
        f"{FLINK}.util.FlinkRuntimeException: Exceeded checkpoint tolerable failure threshold. The latest"
    ],
}


@pytest.mark.parametrize(("words", "trace"), [(words, trace) for words, traces in TRACES.items() for trace in traces])
def test_a_known_cause_is_named(words, trace):
    assert words in restart_cause(trace)
    assert sum(words in restart_cause(other) for others in TRACES.values() for other in others) == len(TRACES[words])


def failure(what) -> str:
    """Return what Python says when something fails in a worker, as Beam passes it on."""
    code = f"import pickle; pickle.loads({what!r})" if isinstance(what, bytes) else what
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    return f"java.lang.RuntimeException: Error received from SDK harness for instruction 4: {told}"


@pytest.mark.slow
def test_a_fault_of_a_worker_is_explained(tmp_path):
    key = tmp_path / "noise.key"
    key.write_bytes(bytes(range(1, 33)))
    key.chmod(0o600)
    noise = pickle.dumps(KeyedNoise.from_file(key))
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    assert "worker has another noise key than the launch" in restart_cause(failure(noise))
    key.unlink()
    assert "worker cannot read the noise key" in restart_cause(failure(noise))
    missing = restart_cause(failure("import no_such_package"))
    assert "workers' Python has no module no_such_package: install the package there" in missing
    assert "Python worker ran out of memory" in restart_cause(failure("bytearray(1 << 60)"))


def test_no_record_is_quoted():
    assert restart_cause(failure("raise ValueError('the diary of user 7')")) == "ValueError"
    assert restart_cause("java.lang.IllegalStateException: the diary of user 7") == "IllegalStateException"
    assert restart_cause("") == "unknown; see the task managers' logs"


class JobPage(BaseHTTPRequestHandler):
    """Answers as a job manager does; what it knows is what the server was given."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.answers.get(self.path, {})).encode())

    def do_PATCH(self):
        """Cancel a job."""
        job = self.path.partition("?")[0]
        self.server.cancelled.append(self.path)
        self.server.answers[job] = {"state": "CANCELED"}
        self.send_response(202)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def cluster():
    with HTTPServer(("127.0.0.1", 0), JobPage) as server:
        server.answers = {"/jobs/overview": {"jobs": [{"jid": "old", "name": "counts to rows"}]}}
        server.cancelled = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def name_of(options: PipelineOptions) -> str:
    return options.view_as(GoogleCloudOptions).job_name


def wait_for(told: list[str], number: int) -> list[str]:
    deadline = time.monotonic() + 60
    while len(told) < number and time.monotonic() < deadline:
        time.sleep(0.01)
    return told


def exceptions(*traces: str) -> dict:
    """Return Flink's account of restarts: the newest first."""
    entries = [{"timestamp": 1000 + number, "stacktrace": trace} for number, trace in enumerate(traces)]
    return {"exceptionHistory": {"entries": entries[::-1]}}


def test_restarts_of_this_job_are_told(cluster):
    options = PipelineOptions(["--runner=FlinkRunner", f"--flink_master=127.0.0.1:{cluster.server_port}"])
    name_job(options, "counts to rows")
    heap, other = TRACES["heap memory"][0], "java.io.IOException: x"
    told: list[str] = []
    with submitted_job(options, told.append, seconds=0.02):
        cluster.answers["/jobs/old/exceptions"] = exceptions(other)
        cluster.answers["/jobs/other/exceptions"] = exceptions(other)
        cluster.answers["/jobs/new/exceptions"] = exceptions(heap)
        jobs = [{"jid": "other", "name": "counts to rows"}, {"jid": "new", "name": name_of(options)}]
        cluster.answers["/jobs/overview"]["jobs"] += jobs
        wait_for(told, 1)
        assert told[0].startswith("Flink restarts the job, 1 time so far: a task manager ran out of heap memory")
        cluster.answers["/jobs/new/exceptions"] = exceptions(heap, heap, heap, other)
        wait_for(told, 3)
    assert [line[: line.index(" so far")] for line in told] == [
        f"Flink restarts the job, {count}" for count in ("1 time", "2 times", "4 times")
    ]
    assert told[2].endswith("IOException")


def test_a_cluster_without_an_answer_and_other_runners_tell_nothing():
    told: list[str] = []
    for arguments in (["--runner=FlinkRunner", "--flink_master=127.0.0.1:1"], ["--runner=FnApiRunner"]):
        options = PipelineOptions(arguments)
        name_job(options, "counts to rows")
        with submitted_job(options, told.append, seconds=0.01):
            time.sleep(0.1)
    assert told == []


def begin(cluster, job: str, name: str) -> None:
    cluster.answers["/jobs/overview"]["jobs"].append({"jid": job, "name": name})
    cluster.answers[f"/jobs/{job}"] = {"state": "RUNNING"}


def interrupted(cluster, own: str | None = None, *others: str) -> str:
    """Return what is told at Ctrl-C when this job has begun, and other people's jobs of the same name have."""
    options = PipelineOptions(["--runner=FlinkRunner", f"--flink_master=127.0.0.1:{cluster.server_port}"])
    name_job(options, "counts to rows")
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt), submitted_job(options, told.append):
        for other in others:
            begin(cluster, other, "counts to rows")
            begin(cluster, f"{other} too", "counts to rows 5c0d19e2")
        if own is not None:
            begin(cluster, own, name_of(options))
        raise KeyboardInterrupt
    (line,) = told
    return line


def test_ctrl_c_ends_the_job_of_this_command_and_no_other(cluster):
    assert interrupted(cluster, None, "theirs") == "no job has begun on the cluster"
    assert cluster.cancelled == []
    line = interrupted(cluster, "new", "theirs as well")
    assert line == "job new has ended on the cluster; its last checkpoint stays"
    assert cluster.cancelled == ["/jobs/new?mode=cancel"]
    assert cluster.answers["/jobs/new"]["state"] == "CANCELED"


def test_ctrl_c_says_where_a_cluster_is_not_known_to_have_ended_the_job(cluster, monkeypatch):
    monkeypatch.setattr(flink, "CANCEL_SECONDS", 0)
    assert interrupted(cluster, "new").startswith("the cluster has not confirmed that job new has ended")
    cluster.answers["/jobs/overview"] = {}
    line = interrupted(cluster)
    assert line == "the cluster does not answer, so that the job may go on there: cancel it on Flink's page"
    assert cluster.cancelled == []


def test_a_second_job_that_writes_the_same_is_refused_while_the_first_goes_on(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(flink, "LET_GO_SECONDS", 0.1)
    monkeypatch.chdir(tmp_path)

    def submit(*writes: str) -> str:
        options = PipelineOptions(["--runner=FlinkRunner", f"--flink_master=127.0.0.1:{cluster.server_port}"])
        name_job(options, "counts to rows")
        with submitted_job(options, pytest.fail, writes=writes):
            return name_of(options)

    first = submit("rows/_END")
    cluster.answers["/jobs/overview"]["jobs"].append({"jid": "first", "name": first, "state": "RUNNING"})
    assert submit("other/rows/_END").startswith("counts to rows ")
    with pytest.raises(UsageError, match=r"job first on 127\.0\.0\.1:\d+ writes into the same folder: end it first"):
        submit(str(tmp_path / "rows/_END"))
    cluster.answers["/jobs/overview"]["jobs"][-1]["state"] = "CANCELED"
    again = submit("rows/_END")
    assert again != first
    assert again.rpartition(" ")[0] == first.rpartition(" ")[0]


@pytest.mark.parametrize(("given", "name"), [([], "counts to rows"), (["--job_name=mine"], "mine")])
def test_a_job_has_the_name_that_it_was_given_and_on_a_cluster_random_digits(cluster, given, name):
    options = PipelineOptions([*given, "--runner=FlinkRunner", f"--flink_master=127.0.0.1:{cluster.server_port}"])
    name_job(options, "counts to rows")
    assert name_of(options) == name
    with submitted_job(options, pytest.fail):
        assert re.fullmatch(rf"{name} [0-9a-f]{{8}}", name_of(options))
