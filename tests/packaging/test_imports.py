"""Imports point one way, mechanisms stand without Beam, and tests run on what is installed."""

import ast
import functools
import graphlib
import importlib
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from questions import EXAMPLES, write_folder

ROOT = Path(__file__).parents[2]
PACKAGES = ("mechanisms", "transforms", "pipelines")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
MECHANISMS_MAY_IMPORT = {
    "cryptography",
    "dp_accounting",
    "lazy_loader",
    "mpmath",
    "numpy",
    "privstream",
    "pyarrow",
    "scipy",
    "typing_extensions",
}

LOADED = """
import shlex, sys
from privstream.pipelines.cli import main
slow = {"altair", "apache_beam", "pyarrow", "scipy"}
for line in sys.argv[1:]:
    sys.argv[1:] = shlex.split(line)
    if status := main():
        sys.exit(status)
    print("\\nloaded", *sorted(name for name in slow if sys.modules.get(name)))
"""

WITHOUT_BEAM = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "apache_beam":
            raise ModuleNotFoundError(f"{name} is hidden by the test", name=name)

sys.meta_path.insert(0, Absent())
import privstream.mechanisms
for module in pkgutil.walk_packages(privstream.mechanisms.__path__, "privstream.mechanisms."):
    importlib.import_module(module.name)
    print(module.name)
"""


@functools.cache
def imported_modules(path: Path) -> set[str]:
    """Absolute names of all that `path` imports; `from a import b` counts as `a` and as `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: relative import"
            assert node.module
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def top_levels(path: Path) -> set[str]:
    """The first parts of all that `path` imports."""
    return {name.partition(".")[0] for name in imported_modules(path)}


def own_packages(path: Path) -> set[str]:
    """The packages of privstream that `path` imports from."""
    parts = [name.split(".") for name in imported_modules(path)]
    return {name[1] for name in parts if name[0] == "privstream" and len(name) > 1}


def identify(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", PACKAGES)
def test_dependencies_point_one_way(package: str) -> None:
    above = {*PACKAGES[PACKAGES.index(package) + 1 :]}
    sources = [path for path in SOURCES if path.is_relative_to(ROOT / package)]
    assert sources
    assert not [identify(path) for path in sources if own_packages(path) - {*PACKAGES} or own_packages(path) & above]


def rooms(layer: Path) -> dict[str, set[str]]:
    """Which rooms of a layer each of its rooms imports from; a module outside of rooms is one by itself."""
    known = {path.stem for path in layer.iterdir()}
    found: dict[str, set[str]] = {}
    for path in layer.rglob("*.py"):
        names = [name.split(".") for name in imported_modules(path)]
        own = [parts[2] for parts in names if parts[:2] == ["privstream", layer.name] and len(parts) > 2]
        room = path.relative_to(layer).with_suffix("").parts[0]
        found.setdefault(room, set()).update(name if name in known else "__init__" for name in own)
    return {room: others - {room} for room, others in found.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_of_a_layer_form_no_cycle(package: str) -> None:
    graphlib.TopologicalSorter(rooms(ROOT / package)).prepare()  # raises CycleError


def test_folders_are_never_imported_by_their_own_name() -> None:
    folders = {*PACKAGES, "tests", "benchmarks"}
    assert not [identify(path) for path in SOURCES if top_levels(path) & folders]


def test_mechanisms_import_numpy_and_friends_alone() -> None:
    allowed = sys.stdlib_module_names | MECHANISMS_MAY_IMPORT
    found = {identify(path): top_levels(path) - allowed for path in SOURCES if path.is_relative_to(ROOT / "mechanisms")}
    assert found
    assert not {path: names for path, names in found.items() if names}


def test_mechanisms_import_with_beam_absent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BEAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    paths = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "mechanisms").rglob("*.py")}
    names = {".".join(("privstream", *path.parts)).removesuffix(".__init__") for path in paths}
    assert names - {"privstream.mechanisms"} == set(done.stdout.split())


@pytest.mark.parametrize("name", PACKAGES)
def test_no_top_level_package_is_installed(name: str, tmp_path: Path) -> None:
    program = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "None"


def test_tests_import_the_installed_package() -> None:
    distribution = metadata.distribution("privstream")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if os.environ.get("PRIVSTREAM_EXPECT_WHEEL"):
        assert not origin.get("dir_info", {}).get("editable"), "the package is installed editable, not from a wheel"
    if origin.get("dir_info", {}).get("editable"):
        assert Path(unquote(urlparse(origin["url"]).path)).is_dir()
        homes = {package: ROOT / package for package in PACKAGES}
    else:
        homes = {package: Path(str(distribution.locate_file(f"privstream/{package}"))) for package in PACKAGES}
    for package, home in homes.items():
        module = importlib.import_module(f"privstream.{package}")
        assert Path(module.__file__ or "").parent.samefile(home)


def loaded_by_each(folder: Path, *commands: str) -> list[set[str]]:
    """Return which libraries that take long to load are there after each of some commands, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *commands], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("loaded")]


@pytest.mark.slow
def test_no_plan_needs_beam(tmp_path: Path) -> None:
    write_folder(tmp_path)
    plans = [f"plan {word} {example}" for word, example in EXAMPLES.items()]
    loaded = loaded_by_each(tmp_path, *plans)
    for plan, found in zip(plans, loaded, strict=True):
        assert found <= {"pyarrow", "scipy"}, plan
