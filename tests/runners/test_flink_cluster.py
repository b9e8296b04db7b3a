"""The cluster script ends only what it started, says what is missing, and brings up a real Flink cluster."""

import json
import socket
import subprocess
import sys

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from flink_cluster_jobs import DEPLOY, PROCESSES, SCRIPT, load
from privstream.pipelines.runners.flink import FlinkJobOptions, prepare_for_checkpoints


@pytest.fixture
def script():
    return load(SCRIPT)


def call(*arguments, **environment):
    command = [sys.executable, str(DEPLOY / "flink_cluster.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **environment)


def test_a_process_that_took_over_the_number_is_left_alone(script, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        (tmp_path / "old.pid").write_text(f"{stranger.pid} 12345\n")
        assert not script.stop_process(tmp_path / "old.pid")
        assert stranger.poll() is None
        stranger.kill()


def test_what_is_missing_is_named_and_nothing_is_left_behind(tmp_path):
    run = f"--run={tmp_path / 'run'}"
    assert "Java is not installed" in call("start", run, env={"PATH": ""}).stderr
    assert "--job-server must be a jar" in call("start", run, "--job-server=/no/such.jar", "--rest-port=0").stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "is taken" in call("start", run, f"--rest-port={other.getsockname()[1]}").stderr
    for command in ("status", "options", "suspend", "cancel"):
        assert "start one first" in call(command, run).stderr
    assert not list(tmp_path.glob("run/*.pid"))


def checkpoint_options(given: PipelineOptions) -> dict[str, object]:
    return {name: getattr(given.view_as(FlinkJobOptions), name) for name in vars(FlinkJobOptions([])._visible_options)}


def test_options_take_checkpoints_where_the_input_has_no_end(script, tmp_path):
    told = {"names": [], "rest": 1, "pool": 2, "slots": 6, "beam": ""}
    (tmp_path / "cluster.json").write_text(json.dumps(told))
    bounded = script.options(tmp_path, None, unbounded=False, resume=None)
    assert "--parallelism=6" in bounded and not [option for option in bounded if "checkpoint" in option]
    ours = PipelineOptions(["--checkpointing_interval=10000"])
    prepare_for_checkpoints(ours)
    unbounded = PipelineOptions(script.options(tmp_path, None, unbounded=True, resume=None))
    assert checkpoint_options(unbounded) == checkpoint_options(ours)
    savepoint = tmp_path / "savepoint"
    savepoint.mkdir()
    with pytest.raises(script.ClusterError, match="--resume must be the folder of a savepoint"):
        script.options(tmp_path, 1, unbounded=False, resume=str(savepoint))
    (savepoint / "_metadata").touch()
    resumed = script.options(tmp_path, 1, unbounded=False, resume=str(savepoint))
    assert {f"--savepoint_path={savepoint}", "--parallelism=1", "--operator_chaining=false"} <= set(resumed)


@pytest.mark.slow
@pytest.mark.flink
@pytest.mark.xdist_group("flink")
def test_a_cluster_comes_up_with_all_slots(flink_cluster):
    """That it goes away is seen at the end of the tests, where it is stopped."""
    assert "slots            2 of 2 free" in flink_cluster.told
    assert {file.stem for file in flink_cluster.run.glob("*.pid")} == PROCESSES
    with pytest.raises(AssertionError, match="runs already"):
        flink_cluster.call("start")
