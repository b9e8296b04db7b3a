"""Runs one pipeline on a named runner and brings its results back as Python values.

Runners work in other processes, so results travel through files: each bundle writes one. `run` skips the test when the
runner is not on this machine, and fails it when `PRIVSTREAM_REQUIRE_RUNNERS` names the runner or is `1` (all of them).
Flink means a cluster inside the job server, one for each pipeline; it runs in batch mode unless `--streaming` is given.
"""

import os
import pickle
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import apache_beam as beam
import flink_job_server
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.transforms import Published

CACHE = Path(__file__).parents[2] / ".cache"
RUNNERS = ("fn_api", "prism", "flink")

on_every_runner = pytest.mark.parametrize(
    "runner",
    [
        pytest.param("fn_api"),
        pytest.param("prism", marks=pytest.mark.prism),
        pytest.param("flink", marks=[pytest.mark.flink, pytest.mark.slow, pytest.mark.xdist_group("flink")]),
    ],
)
"""Parametrises a test by `runner`, the name to hand to `run`."""

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


def missing(runner: str) -> str:
    """Return what this runner lacks on this machine and how to get it, or an empty string."""
    if runner not in RUNNERS:
        raise ValueError(f"runner must be one of {', '.join(RUNNERS)}, got {runner}")
    if runner == "prism" and not os.access(prism_location(), os.X_OK):
        return f"no Prism binary at {prism_location()}: run deploy/get_prism.sh"
    if runner == "flink" and shutil.which("java") is None:
        return "no Java: install a Java runtime, 11 or 17"
    if runner == "flink" and not flink_job_server.jar().is_file():
        return f"no Flink job server at {flink_job_server.jar()}: run deploy/get_flink_job_server.sh"
    return ""


def require(runner: str) -> None:
    """Skip the calling test when the runner is missing; fail it where the environment says it must be there."""
    if reason := missing(runner):
        stop(runner, reason)


def stop(runner: str, reason: str) -> NoReturn:
    """Skip the calling test, for which something is missing; fail it where the environment says it must be there."""
    required = os.environ.get("PRIVSTREAM_REQUIRE_RUNNERS", "").replace(",", " ").split()
    if "1" in required or runner in required:
        pytest.fail(f"{runner} is required here: {reason}", pytrace=False)
    pytest.skip(f"{runner}: {reason}")


def options(runner: str, *extra: str) -> PipelineOptions:
    """Return the pipeline options that choose this runner."""
    match runner:
        case "prism":
            chosen = ["--runner=PrismRunner", f"--prism_location={prism_location()}", "--prism_log_level=warn"]
        case "flink":
            chosen = ["--runner=PortableRunner", f"--job_endpoint={flink_job_server.endpoint()}"]
            chosen += ["--environment_type=LOOPBACK", "--parallelism=2"]
        case _:
            chosen = ["--runner=FnApiRunner"]
    return PipelineOptions([*chosen, *extra])


class _WriteBundle(beam.DoFn):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def start_bundle(self) -> None:
        self._rows: list[tuple[object, int]] = []

    def process(self, element: object, timestamp=beam.DoFn.TimestampParam) -> None:
        self._rows.append((element, timestamp.micros))

    def finish_bundle(self) -> None:
        Path(self._folder, uuid.uuid4().hex).write_bytes(pickle.dumps(self._rows))


def run(runner: str, build: Callable[[beam.Pipeline], Outputs], *extra: str) -> Results:
    """Build and run a pipeline to its end; a failed pipeline raises what its runner raises.

    Args:
        runner: A name of `RUNNERS`.
        build: Adds transforms to the pipeline and returns what to collect: one PCollection (collected as `main`),
            several by name, or both outputs of a private transform (`rows` and `dead`). Elements must be picklable.
        extra: Further pipeline options.
    """
    require(runner)
    with tempfile.TemporaryDirectory(prefix="runner-harness-") as folder:
        pipeline = beam.Pipeline(options=options(runner, *extra))
        built = build(pipeline)
        if isinstance(built, Published):
            built = {"rows": built.rows, "dead": built.dead_letters}
        collected = built if isinstance(built, Mapping) else {"main": built}
        for name, rows in collected.items():
            Path(folder, name).mkdir()
            _ = rows | f"Collect {name}" >> beam.ParDo(_WriteBundle(str(Path(folder, name))))
        result = pipeline.run()
        result.wait_until_finish()
        outputs = {name: _read(Path(folder, name)) for name in collected}
    return Results(outputs, _counters(result))


def _read(folder: Path) -> list[tuple[object, int]]:
    return [row for file in folder.iterdir() for row in pickle.loads(file.read_bytes())]


def _counters(result: beam.runners.runner.PipelineResult) -> dict[str, int]:
    """Sum user counters over steps. Prism reports no attempted values and mixes in its own, which have no namespace."""
    counters: dict[str, int] = {}
    for counter in result.metrics().query()["counters"]:
        name = counter.key.metric
        if name.namespace and not name.name.startswith("metric:"):
            key = f"{name.namespace}:{name.name}"
            counters[key] = counters.get(key, 0) + counter.committed
    return counters
