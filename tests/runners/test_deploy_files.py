"""What is for clusters that cannot be run here is at least right in itself. None of it has been run by these tests."""

import argparse
import contextlib
import copy
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import flink_job_server
import pytest
import yaml
from apache_beam.options.pipeline_options import FlinkRunnerOptions, PortableOptions, StandardOptions
from flink_cluster_jobs import load, wait_until
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard
from privstream.pipelines import cli
from privstream.pipelines.runners import launch
from privstream.pipelines.serve.metrics_command import OF_JOBS
from runner_harness import CACHE

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
COMPOSE_FLINK = yaml.safe_load((DEPLOY / "compose" / "flink.yaml").read_text())
METRICS = re.compile(r"\b(?:flink|privstream)_\w+")
PROMETHEUS = DEPLOY / "prometheus"
ALERTS = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana" / "jobs.json").read_text())
PANELS = DASHBOARD["panels"]
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text()


def tool(name: str) -> str:
    """Return the path of a linter; without it the test is skipped, or fails where linters must be there."""
    where = "Debian's package prometheus has it" if name.startswith("prom") else "pip install 'privstream[dev]'"
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None and os.environ.get("PRIVSTREAM_REQUIRE_LINTERS"):
        pytest.fail(f"{name} is required here: {where}")
    if found is None:
        pytest.skip(f"{name} is not installed: {where}")
    return found


def lint(*command: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_dockerfile_passes_its_linter(tmp_path):
    checked = lint(tool("hadolint"), str(DEPLOY / "Dockerfile"))
    assert checked.returncode == 0, checked.stdout
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN cd /tmp && pip install privstream\n")
    assert lint(tool("hadolint"), str(tmp_path / "Dockerfile")).returncode != 0


def test_what_is_copied_into_the_images_is_there():
    copied = re.findall(r"^COPY (?!--from)(\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert "deploy/worker_pool.py" in copied
    assert all((REPOSITORY / path).exists() for path in copied)


def test_every_image_is_of_the_flink_that_this_repository_runs():
    version = flink_job_server.FLINK_VERSION
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"\nFLINK_IMAGE=flink:{version}-java17" in (DEPLOY / "compose" / "images.env").read_text()
    (image,) = {COMPOSE["services"][name]["image"] for name in ("jobmanager", "taskmanager-1", "taskmanager-2")}
    assert f"--target flink    -t {image} ." in dockerfile


def test_the_launchers_command_is_one_that_privstream_takes(monkeypatch):
    """Unknown options are refused by both parsers."""
    monkeypatch.setattr(launch, "check_flink", lambda options: None)  # there is no cluster here
    command = COMPOSE["services"]["launcher"]["command"]
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    cli.load(cli.COMMANDS[command[0]][0]).add_arguments(parser)
    known, others = parser.parse_known_args(command[1:])
    options = launch.parse_beam_options(others)
    assert known.noise_key_file.startswith("/run/secrets/")
    assert options.view_as(FlinkRunnerOptions).flink_version == flink_job_server.FLINK_LINE
    assert options.view_as(PortableOptions).environment_type == "EXTERNAL"
    assert options.view_as(StandardOptions).streaming


def test_launcher_and_worker_see_key_and_data_at_the_same_places():
    services = COMPOSE["services"]
    assert {tuple(services[name]["secrets"]) for name in ("worker-1", "worker-2", "launcher")} == {("noise_key",)}
    assert {tuple(services[name]["volumes"]) for name in ("worker-1", "worker-2", "launcher")} == {("./data:/data",)}


def test_no_flink_process_sees_the_key():
    services = [COMPOSE["services"][name] for name in ("jobmanager", "taskmanager-1", "taskmanager-2")]
    assert "noise" not in str(services)


def test_ports_are_published_on_loopback_alone():
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_checkpoints_and_job_manager_survive():
    assert COMPOSE_FLINK["high-availability.type"] == "zookeeper"
    for name in ("high-availability.storageDir", "state.checkpoints.dir", "state.savepoints.dir"):
        assert COMPOSE_FLINK[name].startswith("file:///state/")
    assert COMPOSE_FLINK["execution.checkpointing.externalized-checkpoint-retention"] == "RETAIN_ON_CANCELLATION"
    assert COMPOSE_FLINK["restart-strategy.type"] == "exponential-delay"


def test_java_is_set_up_as_in_the_cluster_on_one_machine():
    distribution = load("flink_distribution")
    size = {"slots": 1, "memory": distribution.TASK_MANAGER_MEMORY}
    local = distribution.configuration(Path("/state"), rest_port=8081, **size, zookeeper_port=2181)
    same = ["env.java.opts.all", "taskmanager.memory.process.size", "taskmanager.memory.task.off-heap.size"]
    for name in [*same, "taskmanager.load-balance.mode"]:
        assert COMPOSE_FLINK[name] == local[name]


@pytest.mark.flink
def test_flink_knows_every_setting():
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
    reporter = COMPOSE_FLINK["metrics.reporter.prom.factory.class"].replace(".", "/") + ".class"
    with zipfile.ZipFile(next(libraries.glob("plugins/metrics-prometheus/*.jar"))) as jar:
        assert reporter in jar.namelist()
    own = [name for name in COMPOSE_FLINK if not name.startswith("metrics.reporter.prom.")]
    assert [name for name in own if name.encode() not in constants] == []
    assert b"execution.checkpointing.no-such-setting" not in constants


def test_each_alert_and_its_metrics_are_explained():
    for rule in ALERTS:
        assert f"| {rule['alert']} |" in OPERATIONS
    for query in [*(rule["expr"] for rule in ALERTS), *(panel["targets"][0]["expr"] for panel in PANELS)]:
        names = METRICS.findall(query)
        assert names or query.startswith("ALERTS")
        assert all(
            re.sub(r"_(usable|late|unreadable)_total|(?<=letter)_bytes", "", name) in OPERATIONS for name in names
        )


def test_metrics_of_rules_and_panels_are_those_of_the_command():
    source = (REPOSITORY / "pipelines" / "serve" / "metrics_command.py").read_text()
    known = {f"privstream_job_{name}{'_total' * (kind == 'counter')}" for name, (kind, _, _) in OF_JOBS.items()}
    queries = [*(rule["expr"] for rule in ALERTS), *(panel["targets"][0]["expr"] for panel in PANELS)]
    used = {name for query in queries for name in METRICS.findall(query) if name.startswith("privstream_")}
    assert len(used) > 8
    named = re.findall(r'"(privstream_\w+)"', source) + [f"privstream_dead_letter_{end}" for end in ("files", "bytes")]
    assert used <= known | set(named)


def test_rules_fire_when_they_should_and_only_then(tmp_path):
    promtool = tool("promtool")
    checked = lint(promtool, "test", "rules", str(PROMETHEUS / "alerts_test.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for name in ("alerts.yml", "alerts_test.yml"):
        (tmp_path / name).write_text((PROMETHEUS / name).read_text().replace("> 60000", "> 100000"))
    assert lint(promtool, "test", "rules", str(tmp_path / "alerts_test.yml")).returncode != 0
    fired = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    for test in fired:
        assert {each["alertname"] for each in test["alert_rule_test"]} == {rule["alert"] for rule in ALERTS}


@pytest.mark.parametrize("file", ["one_machine.yml", "prometheus.yml"])
def test_prometheus_takes_its_configuration(file, tmp_path):
    shutil.copytree(PROMETHEUS, tmp_path / "prometheus")
    (tmp_path / "prometheus" / "token").write_text("0123456789abcdef")
    checked = lint(tool("promtool"), "check", "config", str(tmp_path / "prometheus" / file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_takes_the_queries_of_the_dashboard(tmp_path):
    rules = [{"record": f"panel:{panel['id']}", "expr": panel["targets"][0]["expr"]} for panel in PANELS]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked = lint(tool("promtool"), "check", "rules", str(tmp_path / "rules.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert len({panel["id"] for panel in PANELS}) == len(PANELS) == len(rules)


def test_grafanas_schema_knows_every_key_of_the_dashboard():
    """Grafana's own types of its schema: they drop what they do not know."""
    plugins.register_default_plugins()

    def known(given: dict) -> dict:
        return json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(copy.deepcopy(given))))

    assert without(DASHBOARD, known(DASHBOARD)) == []
    assert len(PANELS) > 8
    for path in (("titel",), ("panels", 0, "gridPos", "width"), ("panels", 3, "fieldConfig", "defaults", "unitt")):
        wrong = inner = copy.deepcopy(DASHBOARD)
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = 1
        assert without(wrong, known(wrong)) == ["/".join(map(str, path))]
    wrong = copy.deepcopy(DASHBOARD)
    wrong["panels"][0]["targets"][0]["expression"] = "up"
    assert without(wrong, known(wrong)) == ["panels/0/targets/0/expression"]


def without(given, found, path=()) -> list[str]:
    """Return the paths of what is not found, or is another value."""
    if isinstance(given, dict) and isinstance(found, dict):
        return [one for key in given for one in without(given[key], found.get(key), (*path, key))]
    if isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        pairs = zip(given, found, strict=True)
        return [one for number, pair in enumerate(pairs) for one in without(*pair, (*path, number))]
    return [] if given == found else ["/".join(map(str, path))]


@pytest.mark.slow
def test_prometheus_scrapes_the_command(tmp_path):
    """The real one: it reads the token file, the format, and every number."""
    prometheus = tool("prometheus")
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("0123456789abcdef")
    run = "import sys; from privstream.pipelines.cli import main; sys.exit(main())"
    options = [f"--token_file={tmp_path / 'token'}", "--port=0", f"--dead_letter={tmp_path}"]
    with contextlib.ExitStack() as stack:

        def started(*command, **streams):
            process = stack.enter_context(subprocess.Popen(command, text=True, **streams))
            stack.callback(process.terminate)
            return process

        metrics = started(sys.executable, "-c", run, "metrics", *options, stderr=subprocess.PIPE)
        (target,) = re.findall(r"127\.0\.0\.1:\d+", metrics.stderr.readline())
        text = (PROMETHEUS / "one_machine.yml").read_text().replace("127.0.0.1:9464", target).replace("15s", "1s")
        (tmp_path / "prometheus.yml").write_text(text.replace("rule_files: [alerts.yml]\n", ""))
        with socket.create_server(("127.0.0.1", 0)) as free:
            listening = f"127.0.0.1:{free.getsockname()[1]}"
        where = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        output = stack.enter_context((tmp_path / "said").open("w"))
        started(prometheus, *where, f"--web.listen-address={listening}", stdout=output, stderr=output)

        def value(query: str) -> str:
            with urllib.request.urlopen(f"http://{listening}/api/v1/query?query={query}", timeout=5) as answer:
                found = json.loads(answer.read())["data"]["result"]
            return found[0]["value"][1] if found else ""

        wait_until(lambda: value("privstream_dead_letter_files") != "", "a scrape")
        assert value("up%7Bjob=%22privstream%22%7D") == "1"


def test_counters_that_are_explained_are_counted_somewhere():
    explained = set(re.findall(r"_operator_privstream_(\w+)", OPERATIONS))
    sources = [
        path.read_text() for folder in ("transforms", "pipelines") for path in (REPOSITORY / folder).rglob("*.py")
    ]
    made = re.compile(r'(?:counter|counter_of|gauge)\((?:"privstream", )?"(\w+)"')
    assert len(explained) > 3
    assert explained <= {name for text in sources for name in made.findall(text)}
