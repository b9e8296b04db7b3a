"""What is for clusters that cannot be run here is at least right in itself. None of it has been run by these tests."""

import argparse
from pathlib import Path

import flink_job_server
import yaml
from apache_beam.options.pipeline_options import FlinkRunnerOptions, PortableOptions, StandardOptions
from privstream.pipelines import cli
from privstream.pipelines.options import add_options
from privstream.pipelines.runners import flink, launch

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def test_the_launchers_command_is_one_that_privstream_takes(monkeypatch):
    """Unknown options are refused by both parsers."""
    monkeypatch.setattr(flink, "check_flink", lambda options: None)  # there is no cluster here
    command = COMPOSE["services"]["launcher"]["command"]
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    asked = cli.load(cli.COMMANDS[command[0]][0])
    add_options(parser, asked.keys, asked.kind)
    known, others = parser.parse_known_args(command[1:])
    options = launch.parse_beam_options(others)
    assert vars(known)["account.key"].startswith("/run/secrets/")
    assert options.view_as(FlinkRunnerOptions).flink_version == flink_job_server.FLINK_LINE
    assert options.view_as(PortableOptions).environment_type == "EXTERNAL"
    assert options.view_as(StandardOptions).streaming


def test_no_flink_process_sees_the_key():
    services = [COMPOSE["services"][name] for name in ("jobmanager", "taskmanager-1", "taskmanager-2")]
    assert "noise" not in str(services)


def test_ports_are_published_on_loopback_alone():
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(published) == 1
    assert all(port.startswith("127.0.0.1:") for port in published)
