"""What is for clusters that cannot be run here is at least right in itself. None of it has been run by these tests."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import flink_job_server
import pytest
import yaml
from apache_beam.options.pipeline_options import FlinkRunnerOptions, PortableOptions, StandardOptions
from flink_cluster_jobs import load
from privstream.pipelines import cli
from privstream.pipelines.runners import launch
from runner_harness import CACHE

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
COMPOSE_FLINK = yaml.safe_load((DEPLOY / "compose" / "flink.yaml").read_text())
KUBERNETES = {
    (document["kind"], document["metadata"]["name"]): document
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
}
FLINK = KUBERNETES["FlinkDeployment", "privstream"]["spec"]
LAUNCHER = KUBERNETES["Job", "heavy-hitters"]["spec"]["template"]["spec"]
METRICS = re.compile(r"\bflink_\w+")
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text()


def tool(name: str) -> str:
    """Return the path of a linter; without it the test is skipped, or fails where linters must be there."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None and os.environ.get("PRIVSTREAM_REQUIRE_LINTERS"):
        pytest.fail(f"{name} is required here: pip install 'privstream[dev]'")
    if found is None:
        pytest.skip(f"{name} is not installed: pip install 'privstream[dev]'")
    return found


def lint(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_dockerfile_passes_its_linter(tmp_path):
    checked = lint(tool("hadolint"), str(DEPLOY / "Dockerfile"))
    assert checked.returncode == 0, checked.stdout
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN cd /tmp && pip install privstream\n")
    assert lint(tool("hadolint"), str(tmp_path / "Dockerfile")).returncode != 0


@pytest.mark.parametrize("file", ["namespace.yaml", "launcher.yaml"])
def test_kubernetes_knows_every_field(file, tmp_path):
    validate = [tool("kubernetes-validate"), "--strict", "-k", "1.32"]
    text = (DEPLOY / "kubernetes" / file).read_text()
    checked = lint(*validate, str(DEPLOY / "kubernetes" / file))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (tmp_path / file).write_text(text.replace("namespace: privstream", "namespaces: privstream"))
    assert lint(*validate, str(tmp_path / file)).returncode != 0


def test_what_is_copied_into_the_images_is_there():
    copied = re.findall(r"^COPY (?!--from)(\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert "deploy/worker_pool.py" in copied
    assert all((REPOSITORY / path).exists() for path in copied)


def test_every_image_is_of_the_flink_that_this_repository_runs():
    version = flink_job_server.FLINK_VERSION
    line = version.rpartition(".")[0]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"\nFLINK_IMAGE=flink:{version}-java17" in (DEPLOY / "compose" / "images.env").read_text()
    assert f"--target flink    -t {FLINK['image']} ." in dockerfile
    assert FLINK["flinkVersion"] == f"v{line.replace('.', '_')}"
    assert {COMPOSE["services"][name]["image"] for name in ("jobmanager", "taskmanager-1", "taskmanager-2")} == {
        FLINK["image"]
    }


@pytest.mark.parametrize("place", ["compose", "kubernetes"])
def test_the_launchers_command_is_one_that_privstream_takes(place, monkeypatch):
    """Unknown options are refused by both parsers."""
    monkeypatch.setattr(launch, "check_flink", lambda options: None)  # there is no cluster here
    command = COMPOSE["services"]["launcher"]["command"] if place == "compose" else LAUNCHER["containers"][0]["args"]
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    cli.load(cli.COMMANDS[command[0]][0]).add_arguments(parser)
    known, others = parser.parse_known_args(command[1:])
    options = launch.parse_beam_options(others)
    assert known.noise_key_file.startswith("/run/secrets/")
    assert options.view_as(FlinkRunnerOptions).flink_version == flink_job_server.FLINK_LINE
    assert options.view_as(PortableOptions).environment_type == "EXTERNAL"
    assert options.view_as(StandardOptions).streaming


def test_launcher_and_worker_see_key_and_data_at_the_same_places():
    (worker,) = FLINK["taskManager"]["podTemplate"]["spec"]["containers"]
    for container in (worker, LAUNCHER["containers"][0]):
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounts["noise-key"] == {"name": "noise-key", "mountPath": "/run/secrets/privstream", "readOnly": True}
        assert mounts["data"]["mountPath"] == "/data"
    services = COMPOSE["services"]
    assert {tuple(services[name]["secrets"]) for name in ("worker-1", "worker-2", "launcher")} == {("noise_key",)}
    assert {tuple(services[name]["volumes"]) for name in ("worker-1", "worker-2", "launcher")} == {("./data:/data",)}


def test_no_flink_process_sees_the_key():
    for container in [*FLINK["podTemplate"]["spec"]["containers"], COMPOSE["services"]["jobmanager"]]:
        assert "noise" not in str(container)


def test_whatever_is_mounted_or_claimed_exists():
    pods = [FLINK["podTemplate"]["spec"], FLINK["taskManager"]["podTemplate"]["spec"], LAUNCHER]
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == set(volumes)
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in KUBERNETES
    assert ("ServiceAccount", FLINK["serviceAccount"]) in KUBERNETES


def test_ports_are_published_on_loopback_alone():
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("settings", [COMPOSE_FLINK, FLINK["flinkConfiguration"]], ids=["compose", "kubernetes"])
def test_checkpoints_and_job_manager_survive(settings):
    assert settings["high-availability.type"] in ("zookeeper", "kubernetes")
    for name in ("high-availability.storageDir", "state.checkpoints.dir", "state.savepoints.dir"):
        assert settings[name].startswith("file:///state/")
    assert settings["execution.checkpointing.externalized-checkpoint-retention"] == "RETAIN_ON_CANCELLATION"
    assert settings["restart-strategy.type"] == "exponential-delay"


def test_java_is_set_up_as_in_the_cluster_on_one_machine():
    distribution = load("flink_distribution")
    size = {"slots": 1, "memory": distribution.TASK_MANAGER_MEMORY}
    local = distribution.configuration(Path("/state"), rest_port=8081, **size, zookeeper_port=2181)
    options = [COMPOSE_FLINK["env.java.opts.all"], FLINK["flinkConfiguration"]["env.java.opts.all"]]
    assert options == [local["env.java.opts.all"]] * 2
    memory = [COMPOSE_FLINK["taskmanager.memory.process.size"], FLINK["taskManager"]["resource"]["memory"]]
    assert memory == [local["taskmanager.memory.process.size"]] * 2
    for settings in (COMPOSE_FLINK, FLINK["flinkConfiguration"]):
        for name in ("taskmanager.memory.task.off-heap.size", "taskmanager.load-balance.mode"):
            assert settings[name] == local[name]


@pytest.mark.flink
@pytest.mark.parametrize("settings", [COMPOSE_FLINK, FLINK["flinkConfiguration"]], ids=["compose", "kubernetes"])
def test_flink_knows_every_setting(settings):
    """A name that Flink does not know would be ignored without a word."""
    libraries = CACHE / "flink" / f"flink-{flink_job_server.FLINK_VERSION}"
    if not libraries.is_dir():
        if os.environ.get("PRIVSTREAM_REQUIRE_RUNNERS"):
            pytest.fail("Flink is required here: run deploy/flink_cluster.py start once")
        pytest.skip("Flink has not been fetched: run deploy/flink_cluster.py start once")
    constants = b""
    with zipfile.ZipFile(next(libraries.glob("lib/flink-dist-*.jar"))) as jar:
        for name in jar.namelist():
            if re.match(r"org/apache/flink/(?!shaded)[\w/]*Options(\$\w+)?\.class|.*RestartBackoff.*", name):
                constants += jar.read(name)
    reporter = settings["metrics.reporter.prom.factory.class"].replace(".", "/") + ".class"
    with zipfile.ZipFile(next(libraries.glob("plugins/metrics-prometheus/*.jar"))) as jar:
        assert reporter in jar.namelist()
    own = [name for name in settings if not name.startswith(("metrics.reporter.prom.", "kubernetes.operator."))]
    assert [name for name in own if name.encode() not in constants] == []
    assert b"execution.checkpointing.no-such-setting" not in constants


def test_each_alert_and_its_metrics_are_explained():
    for rule in ALERTS:
        assert f"| {rule['alert']} |" in OPERATIONS
        names = METRICS.findall(rule["expr"])
        assert names and all(f"`{name}`" in OPERATIONS for name in names)


def test_counters_that_are_explained_are_counted_somewhere():
    explained = set(re.findall(r"_operator_privstream_(\w+)", OPERATIONS))
    sources = [
        path.read_text() for folder in ("transforms", "pipelines") for path in (REPOSITORY / folder).rglob("*.py")
    ]
    counted = {name for text in sources for name in re.findall(r'(?:counter|gauge)\("privstream", "(\w+)"\)', text)}
    named = {f"events{rest}" for text in sources for rest in re.findall(r'f"{counter}(_\w+)"', text)}
    assert len(explained) > 3
    assert explained <= counted | named
