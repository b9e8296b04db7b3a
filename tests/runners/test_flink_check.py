"""Flink: what is missing is said before anything is submitted, jobs end with their command, rows are the same."""

import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import flink_job_server
import pytest
from apache_beam.options.pipeline_options import FlinkRunnerOptions, GoogleCloudOptions, PipelineOptions
from flink_cluster_jobs import SCRIPT, load
from listening import elsewhere, run_and_look
from privstream.pipelines.command import UsageError
from privstream.pipelines.runners import flink as flink_check
from privstream.pipelines.runners.flink import FlinkJobOptions, check_flink, submitted_job
from privstream.pipelines.runners.launch import parse_beam_options
from runner_harness import require


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
        server.answers = {"/config": {"flink-version": "1.19.3"}}
        server.answers |= {"/jobs/overview": {"jobs": [{"jid": "old", "name": "counts to rows"}]}}
        server.cancelled, server.address = [], f"127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def java(monkeypatch):
    monkeypatch.setattr(flink_check.shutil, "which", lambda name: f"/bin/{name}")


def options(*given: str) -> PipelineOptions:
    return PipelineOptions(["--runner=FlinkRunner", "--flink_version=1.19", *given])


def test_all_is_there(java, cluster, tmp_path):
    (tmp_path / "server.jar").touch()
    check_flink(options(f"--flink_job_server_jar={tmp_path / 'server.jar'}", f"--flink_master={cluster.address}"))
    check_flink(options(f"--flink_master=http://{cluster.address}"))
    check_flink(options("--flink_master=[local]", "--environment_type=LOOPBACK"))


REFUSED = {
    "no jar": (["--flink_master=[local]", "--flink_job_server_jar=/no/such.jar"], "/no/such.jar"),
    "no cluster": (["--flink_master=127.0.0.1:1"], "127.0.0.1:1"),
    "no host": (["--flink_master=not a host"], "host and port"),
    "another version": (["--flink_master={cluster}", "--flink_version=1.20"], "1.20"),
    "workers inside of the command": (["--flink_master={cluster}", "--environment_type=LOOPBACK"], "LOOPBACK"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused(case, java, cluster):
    given, named = REFUSED[case]
    with pytest.raises(UsageError) as refused:
        check_flink(options(*(option.format(cluster=cluster.address) for option in given)))
    assert named in str(refused.value)


def test_missing_java(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    with pytest.raises(UsageError, match="JAVA_HOME is /opt/java"):
        check_flink(options("--flink_master=[local]"))


def test_checkpoints_never_cut_bundles_short_outlive_their_job_and_fit_any_parallelism():
    given = parse_beam_options(["--checkpointing_interval=5000", "--savepoint_path=/there"]).view_as(FlinkJobOptions)
    assert all(getattr(given, name) for name in flink_check.FLAGS)
    assert given.operator_chaining == "false" and given.savepoint_path == "/there"
    assert (given.checkpointing_interval, given.checkpoint_timeout_millis) == (5000, 120_000)
    assert (given.min_pause_between_checkpoints, given.max_bundle_time_mills) == (1000, 100)
    without = parse_beam_options([]).view_as(FlinkJobOptions)
    assert not without.finish_bundle_before_checkpointing
    assert without.operator_chaining is None


@pytest.mark.parametrize("named", [[], ["--flink_version=1.20"], ["--flink_version", "1.20"]])
def test_a_release_of_flink_that_works_is_taken_unless_one_is_named(named, java):
    given = parse_beam_options(["--runner=FlinkRunner", "--flink_master=[local]", *named])
    assert given.view_as(FlinkRunnerOptions).flink_version == ("1.20" if named else flink_check.FLINK)


def name_of(own: PipelineOptions) -> str:
    return own.view_as(GoogleCloudOptions).job_name


def begin(cluster, job: str, name: str) -> None:
    cluster.answers["/jobs/overview"]["jobs"].append({"jid": job, "name": name})
    cluster.answers[f"/jobs/{job}"] = {"state": "RUNNING"}


def interrupted(cluster, own: str | None = None, *others: str) -> str:
    """Return what is told at Ctrl-C when this job has begun, and other people's jobs of the same name have."""
    mine = options(f"--flink_master={cluster.address}")
    mine.view_as(GoogleCloudOptions).job_name = "counts to rows"
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt), submitted_job(mine, told.append):
        for other in others:
            begin(cluster, other, "counts to rows")
            begin(cluster, f"{other} too", "counts to rows 5c0d19e2")
        if own is not None:
            begin(cluster, own, name_of(mine))
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
    monkeypatch.setattr(flink_check, "LET_GO_SECONDS", 0.1)
    monkeypatch.chdir(tmp_path)

    def submit(*writes: str) -> str:
        mine = options(f"--flink_master={cluster.address}")
        mine.view_as(GoogleCloudOptions).job_name = "counts to rows"
        with submitted_job(mine, pytest.fail, writes=writes):
            return name_of(mine)

    first = submit("rows/_END")
    cluster.answers["/jobs/overview"]["jobs"].append({"jid": "first", "name": first, "state": "RUNNING"})
    assert submit("other/rows/_END").startswith("counts to rows ")
    with pytest.raises(UsageError, match=r"job first on 127\.0\.0\.1:\d+ writes into the same folder: end it first"):
        submit(str(tmp_path / "rows/_END"))
    cluster.answers["/jobs/overview"]["jobs"][-1]["state"] = "CANCELED"
    again = submit("rows/_END")
    assert again != first
    assert again.rpartition(" ")[0] == first.rpartition(" ")[0]


MAVEN = """#!/bin/sh
for one; do case "$one" in -DoutputDirectory=*) folder=${one#*=};; -Dartifact=*) jar=${one#*:};; esac; done
version=${jar#*:}; echo "built" >"$folder/${jar%%:*}-$version.jar"
"""
"""Stands in for `mvn`: puts a jar where the one of Beam would be."""


def test_a_job_server_that_jobs_may_use_is_never_replaced(tmp_path, monkeypatch):
    deploy, cache = tmp_path / "deploy", tmp_path / "cache"
    shutil.copytree(flink_job_server.REPOSITORY / "deploy", deploy)
    for name, script in (("mvn", MAVEN), ("java", "#!/bin/sh")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHON", sys.executable)

    def got() -> Path:
        script = ["sh", str(deploy / "get_flink_job_server.sh"), str(cache)]
        return Path(subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())

    first = got()
    (newest,) = cache.glob("*-newest")
    assert first.read_text() == "built\n"
    assert newest.resolve() == first.parent
    first.write_text("in use")
    (deploy / "flink_job_server" / "pom.xml").touch()
    assert got() == first, "what is in the files counts, not when they were written"
    with (deploy / "flink_job_server" / "config.yaml").open("a") as stream:
        stream.write("# another one")
    second = got()
    assert (first.read_text(), second.read_text()) == ("in use", "built\n")
    assert newest.resolve() == second.parent != first.parent
    assert {path.name for path in cache.iterdir()} == {newest.name, first.parent.name, second.parent.name}


PRIVSTREAM = [sys.executable, "-c", "import sys; from privstream.pipelines.cli import main; sys.exit(main())"]
PRIVACY = ["--window=3600", "--epsilon=4", "--delta=1e-6", "--max_hits=4", "--method=clock"]
PRIVACY += ["--start=2024-01-01", "--end=2024-01-01T04:00", "--time_zone=UTC"]


def call(*command: str) -> None:
    """Run a command; neither it nor what it starts may listen to other machines."""
    answer, found = run_and_look([*PRIVSTREAM, *command])
    assert answer.returncode == 0, answer.stdout
    assert elsewhere(found) == []


@pytest.mark.slow
@pytest.mark.flink
@pytest.mark.xdist_group("flink")
def test_rows_are_those_of_this_machine_and_nothing_listens_to_others(tmp_path: Path) -> None:
    """In batch mode, on the newer release: all other tests have the usual one, also in streaming mode."""
    require("flink")
    release = "1.20.3"
    script = ["sh", str(flink_job_server.REPOSITORY / "deploy" / "get_flink_job_server.sh")]
    environment = os.environ | {"FLINK_VERSION": release, "PYTHON": sys.executable}
    jar = subprocess.run(script, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    events, key = tmp_path / "events.parquet", tmp_path / "noise.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    call("simulate", "--users=5000", "--windows=4", "--seed=7", "--items=300", f"--output={events}")
    flink = [f"--flink_version={release.rpartition('.')[0]}", f"--flink_job_server_jar={jar}"]
    local = ["--runner=FlinkRunner", "--flink_master=[local]", "--environment_type=LOOPBACK", *flink]
    for name, runner in (("here", ["--runner=FnApiRunner"]), ("local", local)):
        files = [f"--input={events}", f"--output={tmp_path / name}.jsonl", f"--key={key}", "--traceback"]
        call("heavy-hitters", *files, *PRIVACY, "--overwrite", *runner)
    rows = (tmp_path / "here.jsonl").read_text()
    assert len([json.loads(line) for line in rows.splitlines()]) > 3
    assert (tmp_path / "local.jsonl").read_text() == rows


@pytest.fixture
def script():
    return load(SCRIPT)


def test_a_process_that_took_over_the_number_is_left_alone(script, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        (tmp_path / "old.pid").write_text(f"{stranger.pid} 12345\n")
        assert not script.stop_process(tmp_path / "old.pid")
        assert stranger.poll() is None
        stranger.kill()
