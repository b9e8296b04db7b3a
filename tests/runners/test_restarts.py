"""Why Flink restarted a job is said in plain words, and told to the command that waits for the job."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from privstream.pipelines.command import UsageError
from privstream.pipelines.runners import flink
from privstream.pipelines.runners.flink import name_job, submitted_job


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
