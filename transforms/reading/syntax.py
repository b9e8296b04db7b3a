"""What a filter is as text: the tree that Python makes of it, and the parts that are fields and constants."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Mapping
from typing import Any

LONGEST_FILTER = 2_000  # characters
DEEPEST = 100  # parts within each other, which are walked by recursion

WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
"""Names that are no fields."""


def parse(text: str) -> ast.expr:
    """Return the tree of a filter; which parts are allowed is checked as they are compiled."""
    if not text.strip():
        raise ValueError("where must not be empty")
    if len(text) > LONGEST_FILTER:
        raise ValueError(f"where must have at most {LONGEST_FILTER:,} characters, got {len(text):,}")
    if any(character in text for character in "\r\n\0\f") or text != text.lstrip():
        raise ValueError("where must be one line, without white space before it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = ast.parse(text, mode="eval")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [token.start[1] + 1 for token in tokens if token.type == tokenize.COMMENT]
    except SyntaxError as error:
        raise ValueError(f"where, character {max(error.offset or 1, 1)}: {error.msg}") from None
    except (Warning, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"where must be a condition such as status >= 500 ({type(error).__name__})") from None
    if comments:
        raise ValueError(f"where, character {comments[0]}: # must stand in quotes only")
    depth, level = 0, [tree.body]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]  # type: ignore[misc]
    if depth > DEEPEST:
        raise ValueError(f"where must have at most {DEEPEST} parts within each other")
    return tree.body


def field(node: ast.expr) -> str | None:
    """Return the name of the field that a part of a filter is; None if it is none."""
    match node:
        case ast.Name(id=name) if name not in WORDS:
            return name
        case ast.Call(func=ast.Name(id="field"), args=[ast.Constant(value=str(name))], keywords=[]) if name:
            return name
    return None


def is_null(node: ast.expr) -> bool:
    """Tell whether a part of a filter is the word for no value."""
    return (isinstance(node, ast.Name) and node.id == "null") or (isinstance(node, ast.Constant) and node.value is None)


def constant(node: ast.expr) -> Any:
    """Return what a number, a text or a truth value stands for; None for anything else."""
    match node:
        case ast.Name(id=name):
            return WORDS.get(name)
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
            inner = constant(operand)
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                return -inner if isinstance(op, ast.USub) else inner
    return None
