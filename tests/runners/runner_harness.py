"""Runs one pipeline on a named runner and brings its results back as Python values.

Runners work in other processes, so results travel through files: each bundle writes one. `run` skips the test when the
runner is not on this machine, and fails it when `PRIVSTREAM_REQUIRE_RUNNERS` is set.
Flink means a cluster inside the job server, one for each pipeline; it runs in batch mode unless `--streaming` is given.
"""

import os
import pickle
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
import flink_job_server
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PBegin
from privstream.transforms import Published

CACHE = Path(__file__).parents[2] / ".cache"
RUNNERS = ("fn_api", "prism", "flink")

Outputs = beam.PCollection | Mapping[str, beam.PCollection] | Published


@dataclass(frozen=True)
class Results:
    """What a finished pipeline gave."""

    outputs: dict[str, list[tuple[object, int]]]  # by name: elements with their timestamp in microseconds, unordered
    counters: dict[str, int]  # "namespace:name" of user counters, summed over steps

    def elements(self, name: str = "main") -> list:
        """Return the elements of one output without their timestamps, unordered."""
        return [element for element, _ in self.outputs[name]]


def prism_location() -> Path:
    """Return where `deploy/get_prism.sh` puts the binary, unless PRISM_LOCATION says otherwise."""
    return Path(os.environ.get("PRISM_LOCATION") or CACHE / "prism" / f"v{beam.__version__}-loopback" / "prism")


def require(runner: str) -> None:
    """Skip the calling test when the runner is missing; fail it where the environment says it must be there."""
    lacks = ""
    if runner == "prism" and not os.access(prism_location(), os.X_OK):
        lacks = f"no Prism binary at {prism_location()}: run deploy/get_prism.sh"
    if runner == "flink" and (shutil.which("java") is None or not flink_job_server.jar().is_file()):
        lacks = f"no Java 11 or 17, or no {flink_job_server.jar()}: run deploy/get_flink_job_server.sh"
    if lacks and os.environ.get("PRIVSTREAM_REQUIRE_RUNNERS"):
        pytest.fail(f"{runner} is required here: {lacks}", pytrace=False)
    if lacks:
        pytest.skip(f"{runner}: {lacks}")


def options(runner: str, *extra: str) -> PipelineOptions:
    match runner:
        case "prism":
            chosen = ["--runner=PrismRunner", f"--prism_location={prism_location()}", "--prism_log_level=warn"]
        case "flink":
            chosen = ["--runner=PortableRunner", f"--job_endpoint={flink_job_server.endpoint()}"]
            chosen += ["--environment_type=LOOPBACK", "--parallelism=2"]
        case _:
            chosen = ["--runner=FnApiRunner"]
    return PipelineOptions([*chosen, *extra])


def command_options(runner: str, *flink: str, own_server: bool = False) -> list[str]:
    """Return the options with which a command of privstream runs on a runner in other processes.

    Args:
        runner: "prism" or "flink".
        flink: further options on Flink.
        own_server: whether the command starts a job server of its own, with which its job ends when both are killed. By
            default it takes the one of these tests, on which no job may be left.
    """
    require(runner)
    if runner == "prism":
        return ["--runner=PrismRunner", f"--prism_location={prism_location()}"]
    server = f"--flink_job_server_jar={flink_job_server.jar()}"
    if not own_server:
        server = f"--job_endpoint={flink_job_server.endpoint()}"
    version = f"--flink_version={flink_job_server.FLINK_LINE}"
    local = ["--runner=FlinkRunner", "--flink_master=[local]", "--environment_type=LOOPBACK", "--parallelism=2"]
    return [*local, version, server, *flink]


class _WriteBundle(beam.DoFn):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def start_bundle(self) -> None:
        self._rows: list[tuple[object, int]] = []

    def process(self, element: object, timestamp=beam.DoFn.TimestampParam) -> None:
        self._rows.append((element, timestamp.micros))

    def finish_bundle(self) -> None:
        Path(self._folder, uuid.uuid4().hex).write_bytes(pickle.dumps(self._rows))


Build = Callable[[Any], Outputs]


def run(runner: str, build: Build, *extra: str) -> Results:
    """Build and run a pipeline to its end; a failed pipeline raises what its runner raises.

    Args:
        runner: A name of `RUNNERS`.
        build: Adds transforms to the pipeline and returns what to collect: one PCollection (collected as `main`),
            several by name, or both outputs of a private transform (`rows` and `dead`). Elements must be picklable.
        extra: Further pipeline options.
    """
    return run_together(runner, {"only": build}, *extra)["only"]


def run_together(runner: str, builds: Mapping[str, Build], *extra: str, source: Any = None) -> dict[str, Results]:
    """Run several pipelines as parts of one, and return the results of each, with the counters of its own steps.

    Args:
        runner: A name of `RUNNERS`.
        builds: As `build` of `run`, by name. Each is given the pipeline, or the collection that `source` makes.
        extra: Further pipeline options.
        source: What all of them read, if it must be one.
    """
    require(runner)
    with tempfile.TemporaryDirectory(prefix="runner-harness-") as folder:
        pipeline = beam.Pipeline(options=options(runner, *extra))
        given = pipeline if source is None else pipeline | "Source" >> source
        parts = {name: f"Part{number}" for number, name in enumerate(builds)}
        for name, part in parts.items():
            _ = given | part >> _Part(builds[name], Path(folder, part))
        result = pipeline.run()
        result.wait_until_finish()
        counters = _counters(result)
        return {name: Results(_read(Path(folder, part)), counters.get(part, {})) for name, part in parts.items()}


class _Part(beam.PTransform):
    """One pipeline of several; each of its outputs is written to a folder of its name."""

    def __init__(self, build: Build, folder: Path) -> None:
        super().__init__()
        self._build = build
        self._folder = folder

    def expand(self, given):
        built = self._build(given.pipeline if isinstance(given, PBegin) else given)
        if isinstance(built, Published):
            built = {"rows": built.rows, "dead": built.dead_letters}
        collected = built if isinstance(built, Mapping) else {"main": built}
        for name, rows in collected.items():
            folder = self._folder / name
            folder.mkdir(parents=True)
            _ = rows | f"Collect {name}" >> beam.ParDo(_WriteBundle(str(folder)))
        return dict(collected)


def _read(folder: Path) -> dict[str, list[tuple[object, int]]]:
    return {
        output.name: [row for file in output.iterdir() for row in pickle.loads(file.read_bytes())]
        for output in folder.iterdir()
    }


def _counters(result: beam.runners.runner.PipelineResult) -> dict[str, dict[str, int]]:
    """Sum user counters by part of the pipeline, over its steps.

    Prism reports no attempted values and mixes in its own, which have no namespace.
    """
    counters: dict[str, dict[str, int]] = {}
    for counter in result.metrics().query()["counters"]:
        name = counter.key.metric
        if name.namespace and not name.name.startswith("metric:"):
            part = re.search(r"(?<![A-Za-z])Part\d+", counter.key.step)[0]
            of_part = counters.setdefault(part, {})
            key = f"{name.namespace}:{name.name}"
            of_part[key] = of_part.get(key, 0) + counter.committed
    return counters
