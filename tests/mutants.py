"""Changes one line of a module at a time, from a frozen list, and counts how many of these mutants the tests notice.

    python tests/mutants.py --frozen [--only mechanisms/noise] [--output FILE.json]

Works in a copy of the folder, so that nobody meets a mutant. The test that the list names is tried first, then all of
the module. What no test notices is printed: either a test is missing, or the change means nothing. Lines of the list
that are not in their module any more are `gone`: write them anew. Tests that are not there any more are `stale`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix("").with_name("mutants_frozen.toml")
TIMEOUT_SECONDS = 600
PACKAGES = ("mechanisms", "transforms", "pipelines", "tests", "docs", "benchmarks", "deploy", "examples")


def frozen() -> list[dict[str, Any]]:
    """Return the modules of the list."""
    modules: list[dict[str, Any]] = tomllib.loads(LIST.read_text("utf-8"))["module"]
    return modules


def mutated(source: str, line: str, instead: str) -> str | None:
    """Return the source with one line changed, None where it is not there once."""
    lines = source.splitlines(keepends=True)
    places = [number for number, text in enumerate(lines) if text.strip() == line]
    if len(places) != 1:
        return None
    lines[places[0]] = lines[places[0]].replace(line, instead)
    return "".join(lines)


def pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy, slow ones too."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow or not slow", *arguments]
    paths = os.pathsep.join([str(folder / ".typing"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip


def there(folder: Path, module: dict[str, Any]) -> set[str]:
    """Return the tests that the list names for a module, without stale ones."""
    named = {one["noticed_by"] for one in module["mutants"]}
    files = {name.partition("::")[0] for name in named}
    listed = pytest(folder, "--collect-only", *(name for name in sorted(files) if (folder / name).exists()))
    found = listed.stdout.splitlines()
    return {name for name in named if any(line == name or line.startswith((f"{name}[", f"{name}::")) for line in found)}


def noticed(folder: Path, tests: Iterable[str]) -> str:
    """Return the first test that fails; nothing if all of them pass."""
    if not (asked := sorted(tests)):
        return ""
    try:
        ended = pytest(folder, "-x", *asked)
    except subprocess.TimeoutExpired:
        return "it does not end"
    if ended.returncode not in (0, 1, 2):
        raise RuntimeError(f"pytest ended with {ended.returncode}: {ended.stdout[-500:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ended.stdout, re.MULTILINE)
    return failed[1] if failed else "an error" if ended.returncode else ""


def copied(folder: Path) -> None:
    """Copy what tests need, with the package under its name."""
    for name in PACKAGES:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for file in ROOT.glob("*.*"):
        if file.is_file():
            shutil.copy(file, folder)
    (folder / ".typing" / "privstream").mkdir(parents=True)
    for name in ("mechanisms", "transforms", "pipelines"):
        (folder / ".typing" / "privstream" / name).symlink_to(folder / name)


def main() -> None:
    """Try the mutants, and print the share that the tests notice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frozen", action="store_true", help="the frozen list (there is no other)")
    parser.add_argument("--only", default="", help="modules by the beginning of their paths")
    parser.add_argument("--output", type=Path, help="JSON: what noticed each mutant")
    options = parser.parse_args()
    found: dict[str, str] = {}
    gone = 0
    with tempfile.TemporaryDirectory(prefix="privstream-mutants-") as name:
        folder = Path(name)
        copied(folder)
        for module in (one for one in frozen() if one["path"].startswith(options.only)):
            path, known = folder / module["path"], there(folder, module)
            source = path.read_text("utf-8") if path.exists() else ""
            if fails := noticed(folder, known):
                sys.exit(f"{module['path']}: the tests fail without a change: {fails}")
            for mutant in module["mutants"]:
                if (changed := mutated(source, mutant["line"], mutant["instead"])) is None:
                    gone += 1
                    print(f"gone: {module['path']}: {mutant['line']}", flush=True)
                    continue
                path.write_text(changed, "utf-8")
                if mutant["noticed_by"] not in known:
                    print(f"stale: {mutant['noticed_by']}", flush=True)
                by = noticed(folder, {mutant["noticed_by"]} & known) or noticed(folder, module["tests"])
                found[f"{module['path']}: {mutant['why']}"] = by or "nothing"
                print(f"{'noticed' if by else 'lives'}: {module['path']}: {mutant['why']}: {by}", flush=True)
                if options.output:
                    options.output.write_text(json.dumps(found, indent=1))
            if source:
                path.write_text(source, "utf-8")
    killed = sum(by != "nothing" for by in found.values())
    print(f"{killed} of {len(found)} mutants noticed, {gone} gone")


if __name__ == "__main__":
    main()
