"""Jars that a pom.xml names, with what they need, fetched by Maven into a folder of the cache on first use."""

import shutil
import subprocess
import sys
import uuid
from pathlib import Path

GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


class JarsError(Exception):
    """Something the user can put right; the message says what to do."""


def fetch_jars(pom: Path, folder: Path, what: str) -> Path:
    """Return a folder with the jars, fetched again when the pom has changed; `what` is said of them."""
    if folder.is_dir() and folder.stat().st_mtime >= pom.stat().st_mtime:
        return folder
    for command in ("java", "mvn"):
        if shutil.which(command) is None:
            raise JarsError(f"{command} is not installed; install Java 11 or 17 and Maven")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.parent / f"new-{uuid.uuid4().hex}"
    print(f"Fetching {what}", file=sys.stderr)
    where = ["-DincludeScope=runtime", f"-DoutputDirectory={scratch}"]
    fetched = subprocess.run(
        ["mvn", "-B", "-q", "--strict-checksums", "-f", str(pom), GOAL, *where],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode:
        raise JarsError(f"Maven could not fetch {what}: {fetched.stdout.strip()[-500:]}")
    shutil.rmtree(folder, ignore_errors=True)
    scratch.rename(folder)
    folder.touch()
    return folder
