"""Wheel, sdist and what Beam ships with `--setup_file` install the same files, and nothing else."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.stager import Stager
from grids import some_quick

ROOT = Path(__file__).parents[2]
PACKAGES = ("mechanisms", "transforms", "pipelines")
NOT_SOURCE = (".git", ".venv", ".cache", ".*_cache", ".hypothesis", "*.egg-info", "__pycache__", "build", "dist")

# One worker builds for all of these tests.
pytestmark = pytest.mark.xdist_group("packaging")


def run(*command: str | Path, cwd: Path) -> str:
    """Run `command` without the settings of this process, and show its output when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip_install(archive: Path, target: Path) -> Path:
    """Install `archive` alone into `target`, without a network, as a worker without one must be able to."""
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--no-compile")
    run(sys.executable, "-m", "pip", "install", *offline, "--target", target, archive, cwd=target.parent)
    return target


def installed_files(target: Path) -> set[str]:
    """All files below `target` but the metadata and the command."""
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    return {name for name in files if ".dist-info/" not in name and not name.startswith("bin/")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with tests, docs and all else, for builds leave files behind."""
    return shutil.copytree(
        ROOT, tmp_path_factory.mktemp("source") / "checkout", ignore=shutil.ignore_patterns(*NOT_SOURCE)
    )


@pytest.fixture(scope="module")
def expected(source: Path) -> set[str]:
    """Every module of the three folders, and the data files that belong to them."""
    suffixes = {".py", ".pyi", ".typed", ".yaml", ".html", ".css", ".js"}
    return {
        f"privstream/{path.relative_to(source).as_posix()}"
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.suffix in suffixes or path.name == "py.typed"
    }


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, source, cwd=source)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def beam_archive(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Beam itself makes of `--setup_file` and sends to its workers."""
    options = PipelineOptions([f"--setup_file={source / 'setup.py'}", "--sdk_location=container"])
    out = tmp_path_factory.mktemp("beam")
    Stager.create_job_resources(options, str(out))
    return next(out.glob("*.tar.gz"))


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path, expected: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected


@pytest.mark.slow
@some_quick("kind", ["wheel", "beam_archive"], "wheel")
def test_every_archive_installs_the_same_files(kind, request, expected, tmp_path):
    archive: Path = request.getfixturevalue(kind)
    target = pip_install(archive, tmp_path / "site")
    assert installed_files(target) == expected
    assert {path.name for path in target.iterdir() if not path.name.endswith(".dist-info")} == {"privstream", "bin"}
    program = f"import sys; sys.path.insert(0, {str(target)!r}); import privstream.mechanisms as m; print(m.__file__)"
    where = run(sys.executable, "-P", "-c", program, cwd=tmp_path)
    assert Path(where.strip()) == target / "privstream" / "mechanisms" / "__init__.py"
