"""Rules that every file of the repository keeps, and what images and caches are made of."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("mechanisms", "transforms", "pipelines")
FOLDERS = (*PACKAGES, "tests", "benchmarks", "deploy", "docs", ".ci")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
BINARY = {".avro", ".bz2", ".gz", ".parquet", ".pdf", ".png", ".pyc", ".zst"}


# Where documents may point. Packages come from wherever the machine is set up to fetch them: no file names a registry.
REGISTRIES = tuple(
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("proxy", "golang", "org"),
        ("sum", "golang", "org"),
        ("maven", "org"),
        ("maven", "apache", "org"),
        ("repository", "apache", "org"),
        ("debian", "org"),
        ("docker", "io"),
        ("ghcr", "io"),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|private|mnt)/|\b[A-Z]:\\\\?Users")


def kept_files() -> list[Path]:
    """The files that git keeps, so that keys and rows of somebody who tries things out here do not matter; else all."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if listed:
        return sorted(ROOT / name for name in listed.split("\0") if name)
    return sorted([*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))])


def text_files() -> Iterator[Path]:
    """All files that are not results or binary."""
    for path in kept_files():
        if path.is_file() and path.suffix not in BINARY and "__pycache__" not in path.parts:
            yield path


def test_the_files_of_the_repository_are_found() -> None:
    found = {identify(path) for path in text_files()}
    assert found >= {"README.md", "pyproject.toml", "setup.py", ".ci/run", "docs/questions.md"}


def identify(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


UNKEYED = re.compile(
    r"(?<![\w.])hash\(|^\s*(?:import|from) random\b|(?:np|numpy)\.random|^from numpy import .*random", re.M
)
SEEDED = re.compile(r"np\.random\.(?:default_rng\(\w|Generator)")
"""What a simulation may do."""


def test_randomness_is_keyed() -> None:
    texts = {identify(path): path.read_text("utf-8") for path in SOURCES}
    texts["pipelines/simulate.py"] = SEEDED.sub("", texts["pipelines/simulate.py"])
    assert not {name: UNKEYED.findall(text) for name, text in texts.items() if UNKEYED.search(text)}
    assert all(map(UNKEYED.search, ("x = hash(y)", "import random", "np.random.normal()", "from numpy import random")))


def test_no_registry_host_is_named() -> None:
    named = [(identify(path), host) for path in text_files() for host in REGISTRIES if host in path.read_text("utf-8")]
    assert not named


def test_no_machine_path_is_named() -> None:
    lines = [
        (identify(p), line)
        for p in text_files()
        for line in p.read_text("utf-8").splitlines()
        if MACHINE_PATH.search(line)
    ]
    assert not lines


DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
IMAGES = dict(re.findall(r"^(\w+_IMAGE)=(\S+)$", (DEPLOY / "compose" / "images.env").read_text(), re.MULTILINE))


def test_images_are_built_on_digests() -> None:
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)
    assert len(stages) == DOCKERFILE.count("\nFROM ")
    built = {name for _, name in stages}
    for source, _ in stages:
        if source in built:
            continue
        name = source.strip("${}")
        assert source == f"${{{name}}}" and name in IMAGES
        assert f'RUN case "${name}" in *@sha256:*) ;; *)' in DOCKERFILE


def test_maven_refuses_what_does_not_fit_its_checksum() -> None:
    calls = [
        line
        for path in (*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.py"), ROOT / ".ci" / "run", ROOT / "Makefile")
        for line in path.read_text().splitlines()
        if re.search(r"\bmvn\"?,? \"?-", line) and "--version" not in line
    ]
    assert len(calls) == 1
    assert all("--strict-checksums" in call for call in calls)
