"""Pipelines that are built elsewhere get private transforms from the expansion service, and never the key."""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import runner_harness
from apache_beam.transforms.external import ExternalTransform, ImplicitSchemaPayloadBuilder
from apache_beam.transforms.fully_qualified_named_transform import PYTHON_FULLY_QUALIFIED_NAMED_TRANSFORM_URN
from documents import ROOT, blocks
from listening import descendants, elsewhere, listeners, run_and_look
from privstream.pipelines.yaml import external
from privstream.pipelines.yaml.transforms import TRANSFORMS

PAGES = ROOT / "docs" / "how_to"
NAME = re.compile(r"(?:#!.*\n)?(?:#|//|<!--) (\S+)")  # of a file, in its first comment
KEY = b"the key of the tests of expansion"
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-4, "max_hits": 2, "window": "60s", "horizon": 10}
SEARCHES = [
    beam.Row(user=f"{person}", item="rain", time=f"2030-01-01T00:0{minute}:10Z")
    for person in range(200)
    for minute in range(4)
]


@contextmanager
def serving(*command: str) -> Iterator[tuple[int, int]]:
    """Run a server whose last argument is its port; give its process id and the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*command, str(port)]) as process:
        try:
            deadline = time.monotonic() + 60
            while not any(each.port == port for each in listeners([process.pid])):
                assert process.poll() is None and time.monotonic() < deadline, f"{command} does not listen"
                time.sleep(0.1)
            yield process.pid, port
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[int, int]]:
    with serving(sys.executable, str(ROOT / "deploy" / "expansion_service.py"), "--port") as served:
        yield served


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return str(path)


def expanded(port: int, name: str = "yaml.external.ShiftingHeavyHitters", **config: Any) -> ExternalTransform:
    named = {"constructor": f"privstream.pipelines.{name}", "kwargs": beam.Row(**BUDGET, **config)}
    payload = ImplicitSchemaPayloadBuilder(named)
    return ExternalTransform(PYTHON_FULLY_QUALIFIED_NAMED_TRANSFORM_URN, payload, f"localhost:{port}")


def test_all_transforms_of_beam_yaml_need_a_named_key() -> None:
    for name in TRANSFORMS:
        with pytest.raises(ValueError, match="one of noise_key_file and noise_key_variable must be given"):
            getattr(external, name)()


@pytest.mark.prism
@pytest.mark.slow
def test_rows_come_from_a_service_that_keeps_the_key(service: tuple[int, int], key_file: str) -> None:
    pid, port = service

    def build(pipeline: beam.Pipeline) -> beam.PCollection:
        rows = pipeline | beam.Create(SEARCHES) | expanded(port, noise_key_file=key_file)
        graph = pipeline.to_runner_api().SerializeToString()
        assert key_file.encode() in graph
        assert KEY not in graph and KEY.hex().encode() not in graph
        return rows | beam.Map(lambda row: (row.item, row.status))

    found = runner_harness.run("prism", build).elements()
    assert sorted(found) == [("rain", "continues")] * 3 + [("rain", "started")]
    assert listeners(descendants(pid)) and not elsewhere(listeners(descendants(pid)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("yaml.external.ShiftingHeavyHitters", "one of noise_key_file and noise_key_variable must be given"),
        ("yaml.transforms.ShiftingHeavyHitters", "not allowed by filter"),
    ],
)
def test_a_random_key_is_not_sent(service: tuple[int, int], name: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        _ = beam.Pipeline(runner="FnApiRunner") | beam.Create(SEARCHES) | expanded(service[1], name)


def test_the_page_for_go_takes_the_release_of_beam_that_is_installed() -> None:
    assert f"@v{beam.__version__} " in (PAGES / "go.md").read_text("utf-8")


@pytest.mark.prism
@pytest.mark.slow
@pytest.mark.timeout(600)  # the first time, libraries must be fetched
@pytest.mark.parametrize(("language", "programs"), [("go", ["go"]), ("java", ["javac", "mvn"])], ids=["go", "java"])
def test_a_page_can_be_followed(service, key_file, tmp_path, language, programs):
    runner_harness.require("prism")
    for program in programs:
        if shutil.which(program) is None:
            runner_harness.stop("prism", f"the page on {language} needs {program}, which is not installed")
    page = (PAGES / f"{language}.md").read_text("utf-8")
    for _, file in blocks(page, "go", "xml", "java", "bash"):
        path = tmp_path / NAME.match(file)[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file, "utf-8")
    build, servers, run = (block for _, block in blocks(page, "sh"))
    build, _, key = build.rpartition("openssl")
    assert key == " rand -out key 32 && chmod 600 key\n" and "python deploy/expansion_service.py --port" in servers
    subprocess.run(["bash", "-ec", build], cwd=tmp_path, check=True)
    ((_, shown),) = blocks(page, "text")
    prism, expected = str(runner_harness.prism_location()), shown.splitlines()
    for _ in range(2):  # one run of some twenty, on a busy machine, had rows of the last window alone
        with serving(prism, "--serve_http=false", "--log_level=warn", "--job_port") as (pid, port):
            own = run.replace("localhost:8097", f"localhost:{service[1]}").replace(
                "localhost:8073", f"localhost:{port}"
            )
            done, found = run_and_look(["bash", "-ec", own], tmp_path, pid, service[0])
        assert done.returncode == 0, done.stdout
        rows = sorted(line for line in done.stdout.splitlines() if " rain " in line)
        if rows == expected:
            break
    assert rows == expected
    assert found and not elsewhere(found)
