"""What images and caches are made of is named by its digest, or checked against one."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
IMAGES = dict(re.findall(r"^(\w+_IMAGE)=(\S+)$", (DEPLOY / "compose" / "images.env").read_text(), re.MULTILINE))
ENTRY = re.compile(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def locked(name: str) -> dict[str, Version]:
    """Return what a lock file names; every line belongs to a release and its hashes."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / name).read_text(), flags=re.MULTILINE)
    assert ENTRY.sub("", text) == ""
    return {found[1]: Version(found[2]) for found in ENTRY.finditer(text)}


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("requirements.txt", PROJECT["project"]["dependencies"]),
        ("requirements.txt", PROJECT["project"]["optional-dependencies"]["kafka"]),
        ("requirements-build.txt", [*PROJECT["build-system"]["requires"], "build"]),
    ],
)
def test_the_lock_covers_what_the_project_needs(file: str, wanted: list[str]) -> None:
    releases = locked(file)
    for requirement in map(Requirement, wanted):
        assert releases[requirement.name] in requirement.specifier


def test_images_install_by_hash_alone() -> None:
    installs = re.findall(r"pip install [^&\n]*", DOCKERFILE)
    assert len(installs) == 3
    for install in installs:
        by_hash = "--require-hashes" in install and "--only-binary :all:" in install  # to build one fetches more
        assert by_hash or ("--no-index" in install and "--no-deps" in install)
    assert "python -m build --wheel --no-isolation" in DOCKERFILE


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


def test_compose_takes_images_from_one_list() -> None:
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    for service in services.values():
        variable = re.fullmatch(r"\$\{(\w+):\?\}", service["image"])
        assert variable[1] in IMAGES if variable else service["build"]["args"].keys() <= IMAGES.keys()


def test_maven_refuses_what_does_not_fit_its_checksum() -> None:
    calls = [
        line
        for path in (*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.py"), ROOT / ".ci" / "run", ROOT / "Makefile")
        for line in path.read_text().splitlines()
        if re.search(r"\bmvn\"?,? \"?-", line) and "--version" not in line
    ]
    assert len(calls) == 2
    assert all("--strict-checksums" in call for call in calls)
