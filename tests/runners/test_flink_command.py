"""`privstream heavy-hitters` on Flink gives the same rows: inside the job server, and on a cluster of processes."""

import json
import sys
from pathlib import Path

import flink_job_server
import pytest
from listening import elsewhere, run_and_look
from runner_harness import require

pytestmark = [pytest.mark.slow, pytest.mark.flink, pytest.mark.xdist_group("flink")]
CLUSTER = [sys.executable, str(Path(__file__).parents[2] / "deploy" / "flink_cluster.py")]
PRIVSTREAM = [sys.executable, "-c", "import sys; from privstream.pipelines.cli import main; sys.exit(main())"]


def call(*command) -> str:
    """Run a command; neither it nor what it starts may listen to other machines."""
    answer, found = run_and_look([str(word) for word in command])
    assert answer.returncode == 0, answer.stdout
    assert elsewhere(found) == []
    return answer.stdout


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    (folder / "noise.key").write_bytes(bytes(range(32)))
    (folder / "noise.key").chmod(0o600)
    simulate = ["simulate", "heavy-hitters", "--users=5000", "--windows=4", "--seed=7", "--items=300"]
    call(*PRIVSTREAM, *simulate, f"--output={folder / 'events.parquet'}")
    return folder


@pytest.fixture(scope="module")
def heavy_hitters(events):
    def run(name: str, *options: str) -> list[dict]:
        rows = events / f"{name}.jsonl"
        command = [
            *PRIVSTREAM,
            "heavy-hitters",
            f"--input={events / 'events.parquet'}",
            f"--output={rows}",
            "--overwrite",
            "--traceback",
        ]
        privacy = ["--window=3600", "--epsilon=4", "--delta=1e-6", "--max_hits=4", "--horizon=4"]
        call(*command, *privacy, f"--noise_key_file={events / 'noise.key'}", *options)
        return [json.loads(line) for line in rows.read_text().splitlines()]

    return run


@pytest.fixture(scope="module")
def expected(heavy_hitters):
    rows = heavy_hitters("expected", "--runner=FnApiRunner")
    assert len(rows) > 3
    return rows


@pytest.mark.parametrize("mode", [[], ["--streaming", "--parallelism=2"]], ids=["batch", "streaming"])
def test_inside_the_job_server(heavy_hitters, expected, mode):
    require("flink")
    flink = [f"--flink_version={flink_job_server.FLINK_LINE}", f"--flink_job_server_jar={flink_job_server.jar()}"]
    local = ["--runner=FlinkRunner", "--flink_master=[local]", "--environment_type=LOOPBACK", *flink]
    assert heavy_hitters("local", *local, *mode) == expected


def test_on_a_cluster(heavy_hitters, expected, tmp_path):
    require("flink")
    run = f"--run={tmp_path / 'run'}"
    call(*CLUSTER, "start", run)
    try:
        submit = [*call(*CLUSTER, "options", run).split(), f"--flink_job_server_jar={flink_job_server.jar()}"]
        assert heavy_hitters("cluster", *submit, "--streaming") == expected
    finally:
        call(*CLUSTER, "stop", run)
