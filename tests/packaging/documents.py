"""Pages of the documentation: the blocks that they show, and a reader who does what they say, in an empty folder."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from privstream.pipelines import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
KEY = "0123456789abcdef0123456789abcdef"


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """Return the languages and the contents of the blocks of a page; of all languages, unless some are named."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(language, block) for language, block in found if not languages or language in languages]


def lines(block: str) -> list[str]:
    """Return the commands of a block, those that are continued as one."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def command_lines(text: str) -> list[list[str]]:
    """Return the complete command lines of privstream in a text; where a program prints a path, it is of this file."""
    shown = [line.strip() for _, block in blocks(text, "", "sh") for line in lines(block)]
    shown = [re.sub(r"\$\([^()]*options[^()]*\)", "", line) for line in shown if line.startswith("privstream ")]
    shown = [re.sub(r"\$\([^()]*\)", __file__, line).removesuffix("&") for line in shown]
    return [shlex.split(line)[1:] for line in shown if not re.search(r"\.\.\.|\$[({]", line)]


def follow(page: Path, printed: Callable[[], str]) -> None:
    """Do what a page says, block by block, in the folder of this process; the key is a known one.

    A block whose first line is a comment with the name of a file is saved under this name, others of Python are run.
    What a page shows in a block of text must have been printed by the commands before it, but for numbers and `...`.

    Args:
        page: the page.
        printed: returns what has been printed since it was last called.
    """
    for language, block in blocks(page.read_text("utf-8")):
        if named := re.match(r"# ([\w.]+)\n", block):
            Path(named[1]).write_text(block, "utf-8")
        elif language == "python":
            exec(compile(block, page.name, "exec"), {"__name__": "__main__"})
        elif language == "sh":
            printed()
            for line in lines(block):
                _do(line)
        elif language == "text":
            expected = r".*".join(re.escape(_shape(part)) for part in block.split("...\n"))
            assert re.search(expected, _shape(printed()), re.DOTALL), f"{page.name} shows what is not printed:\n{block}"


def _do(line: str) -> None:
    """Run a command; those of privstream in this process."""
    if line.startswith("privstream "):
        assert cli.main(shlex.split(line)[1:]) == 0, line
    elif line.startswith("pip install "):
        extras = re.findall(r"\[([\w,]+)\]", line)
        assert set(",".join(extras).split(",")) <= {
            *(metadata.metadata("privstream").get_all("Provides-Extra") or ()),
            "",
        }
    elif made := re.match(r"openssl rand -out (\S+) 32 && chmod 600 ", line):
        Path(made[1]).write_text(KEY)
        Path(made[1]).chmod(0o600)
    else:
        line = line.replace("deploy/", f"{ROOT}/deploy/")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(["bash", "-e", "-c", line], check=True, env={**os.environ, "PATH": path})


def _shape(text: str) -> str:
    """Return a text without what may differ: numbers, and how lines are broken and filled."""
    return " ".join(re.sub(r"\d+(?:[.,]\d+)*(?:e-?\d+)?", "0", text).split())


def options(words: list[str]) -> dict[str, str]:
    """Return the options of a command line that have a value."""
    return {name[2:]: value for name, value in itertools.pairwise(words) if name.startswith("--")}
