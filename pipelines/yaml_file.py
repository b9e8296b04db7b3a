"""Reads a file by the core schema of YAML 1.2, and knows the line of each key: `1e-6` is a number, `no` a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from privstream.pipelines.command import UsageError, without_dashes

LARGEST_FILE = 1 << 20  # bytes
CORE = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
"""How plain values look, by the ends of their tags; what is none of these is a text."""

Path = tuple[str, ...]


class CoreLoader(yaml.SafeLoader):
    """Takes plain values as YAML 1.2 does."""


CoreLoader.yaml_implicit_resolvers = {}  # without those of YAML 1.1
for _tag, _form in CORE.items():
    CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form})$"), None)
CoreLoader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))  # 010 is ten


def at(content: Any, keys: Path) -> Any:
    """Return what stands at a place; None where it is not there."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


@dataclass(frozen=True)
class Document:
    """What is in a file, as plain values, and in which line each key stands, by the keys that lead to it."""

    path: str
    content: dict[str, Any]
    lines: dict[Path, int]

    def error(self, keys: Path, message: str) -> UsageError:
        """Return an error about a key, or the nearest one above it that is there."""
        line = next((self.lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in self.lines), 1)
        return UsageError(f"{self.path}, line {line}: {'.'.join(keys)}{': ' * bool(keys)}{without_dashes(message)}")


def read_document(path: str) -> Document:
    """Read a file."""
    try:
        with open(path, "rb") as stream:
            text = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{path} must be a file that can be read ({error.strerror})") from None
    if len(text) > LARGEST_FILE:
        raise UsageError(f"{path} must have at most {LARGEST_FILE:,} bytes")
    lines: dict[Path, int] = {}
    try:
        loader = CoreLoader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise UsageError(f"{path} must be a mapping of keys to values")
        _note_lines(path, node, (), lines)
        return Document(path, loader.construct_document(node), lines)
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise UsageError(f"{path}, line {line}: must be YAML ({error.problem})") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} must be YAML in UTF-8 ({type(error).__name__})") from None


def _note_lines(path: str, node: yaml.Node, keys: Path, lines: dict[Path, int]) -> None:
    """Note the lines of keys; refuse what could not be named, and keys that stand twice."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _note_lines(path, each, keys, {})
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{path}, line {line}: keys must be texts")
        key.tag = "tag:yaml.org,2002:str"
        inner = (*keys, key.value)
        if inner in lines:
            raise UsageError(f"{path}, line {line}: {'.'.join(inner)} stands twice, first in line {lines[inner]}")
        lines[inner] = line
        _note_lines(path, value, inner, lines)
