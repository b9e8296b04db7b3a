"""Every question as the tests try it: a run that is taken, and a folder with all that these name.

A new question has one entry in `EXAMPLES`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

FILES = "--input events.jsonl --output rows.jsonl"
KEY = "--key key"
ON_A_CLOCK = "--window 3600 --start 2024-01-01 --end 2024-01-01T02:00:00Z --epsilon 1"
EVENT = {"user": "5", "item": "a", "time": "2024-01-01T00:00:01Z", "value": 5}
PUBLIC_FILES = {
    "domain": "a\nb\nc",
    "rules": '{"name": "r", "at_least": 5}',
    "ranges": '{"low": 1, "high": 5}',
    "points": '{"point": 5}',
    "linear": '{"name": "y", "items": ["a"]}',
}
"""What the options of the examples name, besides the events, the rows and the key."""


EXAMPLES = {
    "heavy-hitters": f"{ON_A_CLOCK} --delta 1e-6",
    "counts": f"{ON_A_CLOCK} --delta 1e-6 --max_contributions 2",
    "top-k": f"{ON_A_CLOCK} --top 1 --delta 1e-6",
    "alerts": f"{ON_A_CLOCK} --rules rules",
    "histogram": f"{ON_A_CLOCK} --domain domain",
    "quantiles": f"{ON_A_CLOCK} --delta 1e-6 --max_contributions 2 --low 0 --high 9",
    "flags": f"{ON_A_CLOCK} --domain domain --thresholds 5",
    "cardinality": f"{ON_A_CLOCK} --timeout 60",
    "ranges": f"{ON_A_CLOCK} --universe 64 --queries ranges",
    "predecessor": f"{ON_A_CLOCK} --universe 64 --queries points",
    "queries": "--epsilon 1 --queries linear --domain domain --records 300 --alpha 0.3",
}
"""By its command, options of a run that is taken, but for its files and its key; a plan takes them, too."""


def options(word: str, key: str = KEY) -> str:
    """Return the options of a run that is taken, in a folder of `write_folder`."""
    return f"{FILES} {key} {EXAMPLES[word]}".replace("  ", " ")


def run_line(word: str) -> str:
    """Return the command line of a run that is taken."""
    return f"{word} {options(word)}"


def overridden(words: Sequence[str]) -> list[str]:
    """Return a command line without options, each with a value, that are given again later."""
    names = [word.partition("=")[0].replace("_", "-") for word in words]
    again = [
        name.startswith("--") and name != "--set" and name in names[place + 1 :] for place, name in enumerate(names)
    ]
    values = [place and again[place - 1] and "=" not in words[place - 1] for place in range(len(words))]
    return [word for word, *drop in zip(words, again, values, strict=True) if not any(drop)]


def write_folder(folder: Path, event: Mapping[str, object] | None = None) -> Path:
    """Write one file of everything that the examples name: one event, the public files, and a key."""
    (folder / "events.jsonl").write_text(json.dumps(event or EVENT))
    for name, content in PUBLIC_FILES.items():
        (folder / name).write_text(content)
    (folder / "key").write_text("0123456789abcdef")
    (folder / "key").chmod(0o600)
    return folder
