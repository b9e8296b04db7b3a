"""Nothing that a command starts can be reached from another machine: its ports have no password."""

import sys
from pathlib import Path

import pytest
from listening import Listener, elsewhere, run_and_look
from privstream.pipelines.command import UsageError
from privstream.pipelines.runners import launch
from runner_harness import prism_location, require

PRIVSTREAM = [sys.executable, "-c", "import sys; from privstream.pipelines.cli import main; sys.exit(main())"]


def run(folder: Path, *options: str) -> set[Listener]:
    """Watch a few events with a command; return what listened meanwhile."""
    events, key = folder / "events.jsonl", folder / "key"
    events.write_text("".join(f'{{"user": "{n}", "item": "a", "time": "2024-01-01T00:00:00Z"}}\n' for n in range(500)))
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    privacy = ["--window=3600", "--epsilon=1", "--delta=1e-6", "--max_hits=2", "--method=clock"]
    privacy += ["--start=2024-01-01", "--end=2024-01-01T02:00", "--time_zone=UTC"]
    files = [f"--input={events}", f"--output={folder / 'rows.jsonl'}", f"--key={key}"]
    ran, found = run_and_look([*PRIVSTREAM, "heavy-hitters", *files, *privacy, *options])
    assert ran.returncode == 0, ran.stdout
    return found


@pytest.mark.slow
def test_the_local_runner_listens_nowhere(tmp_path: Path) -> None:
    assert run(tmp_path) == set()


@pytest.mark.prism
def test_prism_and_its_workers_listen_on_loopback_and_leave_nothing(tmp_path, monkeypatch):
    require("prism")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    found = run(tmp_path, "--runner=PrismRunner", f"--prism_location={prism_location()}")
    assert {each.program for each in found} >= {"prism"} and len(found) > 1
    assert elsewhere(found) == []
    left = {path.name for path in temporary.iterdir()}
    assert left <= {"beam-requirements-cache"}, "Beam keeps one folder for all runs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--direct_running_mode=multi_processing"], "direct_running_mode must be in_memory: another one opens a port"),
        (["--direct_running_mode=multi_threading"], "direct_running_mode must be in_memory"),
        (["--direct_num_workers=2"], "direct_num_workers must be 1"),
        (["--direct_num_workers=0"], "direct_num_workers must be 1"),
        (["--runner=PortableRunner", "--job_endpoint=embed"], "job_endpoint must not be embed: it opens a port"),
        (
            ["--flink_submit_uber_jar", "--flink_version=1.19"],
            "flink_submit_uber_jar must not be given: it opens a port",
        ),
        (["--nonsense"], "unknown option --nonsense"),
        (["--direct_num_workers", "many"], "--direct_num_workers: invalid int value: 'many'"),
        (["--runner", "BundleBasedDirectRunner"], "runner must not be BundleBasedDirectRunner"),
        (["--runner", "PrismRunner", "--prism_location", "/no/prism"], "prism_location must be a file, got /no/prism"),
    ],
)
def test_options_of_beam_that_open_ports_to_everybody_or_cannot_work_are_refused(
    arguments: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        launch.parse_beam_options(arguments)
