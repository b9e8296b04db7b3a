"""Imports point one way, mechanisms stand without Beam, and tests run on what is installed."""

import ast
import functools
import graphlib
import importlib
import json
import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from example_results import write
from questions import EXAMPLES

ROOT = Path(__file__).parents[2]
PACKAGES = ("mechanisms", "transforms", "pipelines")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
MECHANISMS_MAY_IMPORT = {"cryptography", "dp_accounting", "mpmath", "numpy", "privstream", "scipy", "typing_extensions"}

LOADED = """
import shlex, sys
from privstream.pipelines.cli import main
slow = {"apache_beam", "matplotlib", "pandas", "pyarrow", "pymongo", "scipy"}
slow |= {"botocore", "httplib2.auth", "numpy.f2py.f2py2e"}
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
        if name.partition(".")[0] in {"apache_beam", "pyarrow"}:
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
    for path in (*layer.rglob("*.py"), *layer.rglob("*.pyi")):  # a package's exports are listed in a stub
        names = [name.split(".") for name in imported_modules(path)]
        own = [parts[2] for parts in names if parts[:2] == ["privstream", layer.name] and len(parts) > 2]
        room = path.relative_to(layer).with_suffix("").parts[0]
        found.setdefault(room, set()).update(name if name in known else "__init__" for name in own)
    return {room: others - {room} for room, others in found.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_of_a_layer_form_no_cycle(package: str) -> None:
    graphlib.TopologicalSorter(rooms(ROOT / package)).prepare()  # raises CycleError


@pytest.mark.parametrize("other", ["from privstream.layer.a.x import y", "from privstream.layer import Y"])
def test_a_cycle_of_rooms_is_recognised(tmp_path: Path, other: str) -> None:
    layer = tmp_path / "layer"
    for room in ("a", "b"):
        (layer / room).mkdir(parents=True)
    (layer / "a" / "x.py").write_text("from privstream.layer import b\nfrom privstream.layer.a import z")
    (layer / "b" / "x.py").write_text(other)
    (layer / "__init__.py").write_text("from privstream.layer.a.x import Y")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(rooms(layer)).prepare()


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


@pytest.mark.slow
def test_the_blocker_of_the_test_above_blocks(tmp_path: Path) -> None:
    program = WITHOUT_BEAM.replace("import privstream.mechanisms\n", "import privstream.mechanisms, apache_beam\n")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "apache_beam is hidden by the test" in done.stderr


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
        assert Path(unquote(urlparse(origin["url"]).path)).samefile(ROOT)
        homes = {package: ROOT / package for package in PACKAGES}
    else:
        homes = {package: Path(str(distribution.locate_file(f"privstream/{package}"))) for package in PACKAGES}
    for package, home in homes.items():
        module = importlib.import_module(f"privstream.{package}")
        assert Path(module.__file__ or "").parent.samefile(home)


def loaded_by(folder: Path, *arguments: str) -> set[str]:
    """Return which libraries that take long to load a command has loaded."""
    (loaded,) = loaded_by_each(folder, shlex.join(arguments))
    return loaded


def loaded_by_each(folder: Path, *commands: str) -> list[set[str]]:
    """Return which libraries that take long to load are there after each of some commands, in one process."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *commands], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("loaded")]


def test_one_family_of_processors_sorts_slowly() -> None:
    """So it is by the first of several processors; unknown ones do not."""
    processors = {
        ("AuthenticAMD", 25, "avx2 avx512f"): True,
        ("AuthenticAMD", 25, "avx2"): False,  # Zen 3
        ("AuthenticAMD", 26, "avx2 avx512f"): False,
        ("GenuineIntel", 6, "avx2 avx512f"): False,
        ("GenuineIntel", 25, "avx2 avx512f"): False,
    }
    told = [
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: A: B\nflags\t\t: fpu {flags}\n"
        for vendor, family, flags in processors
    ]
    program = "import sys, privstream.pipelines.runners.libraries as it; print(*map(it.sorts_slowly, sys.argv[1:]))"
    texts = [
        *told,
        *(f"{text}\nvendor_id\t: cut o" for text in told),
        "",
        told[0].replace("vendor_id", "CPU implementer"),
    ]
    done = subprocess.run([sys.executable, "-c", program, *texts], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(slowly) for slowly in [*processors.values(), *processors.values(), False, False]]


def test_numpy_is_told_only_what_it_knows(tmp_path: Path) -> None:
    """An unknown name is a warning of each command, or its end where warnings are errors."""
    program = """
import sys, privstream.pipelines.runners.libraries as it
from importlib.machinery import ModuleSpec
print(it.knows_name(None), *(it.knows_name(ModuleSpec("numpy", None, origin=path)) for path in sys.argv[1:]))
"""
    versions = {"1.26.4": False, "2.1.3": False, "2.3.5": False, "2.4.0": True, "2.4.6": True, "2.10.0": True}
    versions |= {"3.0.0.dev0": True, "unknown": False}
    paths = []
    for version in versions:
        (tmp_path / version).mkdir()
        (tmp_path / version / "version.py").write_text(f'"""Of the version."""\nversion = "{version}"\n')
        paths.append(str(tmp_path / version / "__init__.py"))
    done = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(knows) for knows in [False, *versions.values()]]
    strict = "import privstream.pipelines.runners.libraries, numpy"
    subprocess.run([sys.executable, "-W", "error", "-c", strict], capture_output=True, check=True)


@pytest.mark.slow
def test_what_is_put_off_is_there_when_it_is_used(tmp_path: Path) -> None:
    """So it is with parts of it, and with what composing losses does not use."""
    program = """
import privstream.pipelines.runners.libraries, os, sys
import numpy as np, numpy.f2py, boto3, httplib2
print(os.environ["OPENBLAS_THREAD_TIMEOUT"])
print("numpy.f2py.f2py2e" in sys.modules, "botocore" in sys.modules)
import boto3.session, numpy.testing as testing
print(np.f2py.get_include()[-3:], testing.assert_allclose(1.0, 1.0), np.f2py is sys.modules["numpy.f2py"])
print(boto3.session.Session is boto3.Session, httplib2.Http().timeout)
import pyarrow.compute as pc
print("pyarrow._compute" in sys.modules, pc.sum([1, 2]), "pyarrow._compute" in sys.modules, "min" in vars(pc))
from matplotlib.figure import Figure
import matplotlib.artist as artist
print(repr(artist.kwdoc(Figure)), Figure().add_subplot().text(0, 0, "shown").get_text())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == [
        "4",
        "False False",
        "src None True",
        "True None",
        "False 3 True True",
        "'' shown",
        "",
    ]


@pytest.mark.slow
def test_budgets_need_no_beam(tmp_path: Path) -> None:
    ledger = ("--ledger", "ledger.jsonl")
    for command in (("set", "--dataset", "d", "--limit", "1"), ("verify",), ("show",)):
        assert not loaded_by(tmp_path, "budget", *command, *ledger) - {"scipy"}, command


@pytest.mark.slow
def test_plans_and_suggestions_load_nothing_that_draws(tmp_path: Path) -> None:
    windows = ("--window", "1h", "--start", "2024-01-01", "--end", "2024-01-02")
    (tmp_path / "events.csv").write_text("user,item,time\nu,i,2024-01-01T00:00:00Z\n")
    plan = ("plan", "counts", "--epsilon", "1", "--delta", "1e-6", "--window", "1h", "--windows", "24")
    suggest = ("suggest", "--input", "events.csv", *windows, "--epsilon", "0.1")
    assert loaded_by(tmp_path, *plan, "--max_contributions", "10", "--renew_every", "12h") <= {"pyarrow", "scipy"}
    assert not loaded_by(tmp_path, *suggest) & {"matplotlib"}


@pytest.mark.slow
def test_a_run_loads_beam_without_what_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user,item,time\nu,i,2024-01-01T00:00:00Z\n")
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    of_counts = "counts --noise_key_file key --output rows.jsonl --delta 1e-6 --max_contributions 3"
    windows = "--window 1h --start 2024-01-01 --end 2024-01-02 --epsilon 0.1 --input events.csv --ledger ledger"
    loaded = loaded_by(tmp_path, *shlex.split(f"{of_counts} {windows}"))
    assert loaded == {"apache_beam", "pyarrow", "scipy"}


@pytest.mark.slow
@pytest.mark.parametrize("question", ["counts", "quantiles"])
def test_limits_are_suggested_without_beam(question: str, tmp_path: Path) -> None:
    """Also where something can be suggested, and where a line cannot be used."""
    lines = [f"u{user},i{item},2024-01-01T0{item}:00:00Z,{item}" for user in range(300) for item in range(3)]
    (tmp_path / "events.csv").write_text("\n".join(["user,item,time,value", *lines, "u,i,never,1"]))
    options = f"--question {question} --window 1h --start 2024-01-01 --end 2024-01-02 --epsilon 2 --input events.csv"
    files = "--output limits.jsonl --dead_letter letters.jsonl --ledger ledger"
    assert loaded_by(tmp_path, "suggest", *shlex.split(f"{options} {files}")) <= {"pyarrow", "scipy"}
    assert len((tmp_path / "letters.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_public_samples_are_compared_without_beam(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("user,item,time\nu,i,2024-01-01T00:00:00Z\n")
    plan = "plan counts --like events.csv --window 1h --start 2024-01-01 --windows 24 --epsilon 1 --delta 1e-6"
    assert "apache_beam" not in loaded_by(tmp_path, *shlex.split(plan))


@pytest.mark.slow
def test_no_plan_needs_beam(tmp_path: Path) -> None:
    plans = [f"plan {word} {example.plan}" for word, example in EXAMPLES.items()]
    plans.append("plan top-k --epsilon 1 --delta 1e-6 --items 10 --top 2 --windows 5")
    plans.append("plan heavy-hitters --epsilon 1 --delta 1e-6 --windows 24 --neighbouring replace_one")
    loaded = loaded_by_each(tmp_path, *plans)
    for plan, found in zip(plans, loaded, strict=True):
        assert found <= {"pyarrow", "scipy"}, plan


def test_a_plan_until_a_date_needs_no_beam(tmp_path: Path) -> None:
    """Times are read as those of events are, which may be Timestamps of Beam."""
    windows = ("--window", "1d", "--start", "2024-01-01", "--end", "2024-02-01")
    plan = ("plan", "counts", "--epsilon", "1", "--delta", "1e-6", "--max_contributions", "3", *windows)
    assert loaded_by(tmp_path, *plan) <= {"pyarrow", "scipy"}


MONITOR = """
data: {input: events.csv, user: user, item: item, time: time}
window: 1h
start: 2024-01-01
end: 2024-01-02
max_contributions: 10
privacy: {epsilon: 2, delta: 1e-6}
questions:
  people: {question: counts}
  listed: {question: counts, domain: [i, j]}
  places: {question: top-k, items_per_step: 3, top: 3, window: 4h}
views:
  risen: {of: people, against: 1h}
  alarm: {of: people, item: i, above: 9}
  parts: {ratio: [people, listed]}
output: {folder: answers}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with events, a monitor of them, and a result."""
    (tmp_path / "events.csv").write_text("user,item,time\nu,i,2024-01-01T00:00:00Z\n")
    (tmp_path / "monitor.yaml").write_text(MONITOR)
    write(tmp_path, "counts")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "needed"),
    [
        (["schema", "init events.csv --output new.yaml", "plan monitor.yaml"], {"pyarrow", "scipy"}),
        (
            ["report counts.jsonl --output page.html", "plot counts --input counts.jsonl --output picture.svg"],
            {"matplotlib", "pyarrow", "scipy"},
        ),
    ],
    ids=["without pictures", "pictures"],
)
def test_commands_about_local_files_need_no_beam(lines: list[str], needed: set[str], folder: Path) -> None:
    assert loaded_by_each(folder, *lines) == [needed] * len(lines)


@pytest.mark.parametrize("package", ["mechanisms", "transforms"])
def test_a_package_has_what_it_lists(package: str) -> None:
    module = importlib.import_module(f"privstream.{package}")
    assert all(getattr(module, name).__name__ == name for name in module.__all__)
    with pytest.raises(AttributeError, match=f"^module 'privstream.{package}' has no attribute 'Nothing'$"):
        _ = module.Nothing
