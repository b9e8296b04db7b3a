"""Changes one line of a module at a time, and counts how many of these mutants the tests notice.

    python tests/mutants.py mechanisms/checks.py tests/mechanisms/test_guarantees.py --number 8 --seed 1

The module is written back whatever happens; run it in a work tree in which nobody else works. A mutant that no test
notices is printed with its line: either a test is missing, or the change means nothing (a larger buffer, a message).
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 300
OPERATORS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*",
    ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*", ast.And: "or", ast.Or: "and", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
"""What stands in place of an operator."""

CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil", "sum": "max"}
"""What is called in place of a function."""


class Mutant(NamedTuple):
    """One change: `text` in place of the bytes from `start` to `end` of the source."""

    start: int
    end: int
    text: str
    line: int


def mutants(source: str) -> list[Mutant]:
    """Return all single changes of operators, whole numbers, conditions and some functions.

    What says types, decorators, and `strict=True` are left as they are: that changes nothing that tests could see.
    """
    encoded = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [sum(map(len, encoded[:number])) for number in range(len(encoded))]
    tree = ast.parse(source)
    as_they_are = {id(inner) for node in _left_alone(tree) for inner in ast.walk(node)}

    def place(node: ast.expr, *, after: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if after else (node.lineno, node.col_offset)
        return starts[line - 1] + column  # type: ignore[operator]

    found = []
    for node in ast.walk(tree):
        if id(node) in as_they_are or not isinstance(node, ast.expr):
            continue
        for left, right, text in _between(node):
            found.append(Mutant(place(left, after=True), place(right), text, left.lineno))
        if text := _instead(node):
            found.append(Mutant(place(node), place(node, after=True), text, node.lineno))
    return sorted(found)


def _left_alone(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the parts that are not changed."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(found := getattr(node, name, None), ast.expr):
                yield found
        yield from getattr(node, "decorator_list", ())
        if isinstance(node, ast.keyword) and node.arg == "strict":
            yield node.value


def _between(node: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield pairs of operands, and what may stand between them."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node.left, node.comparators[0], f" {OPERATORS[type(node.ops[0])]} "
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield node.left, node.right, f" {OPERATORS[type(node.op)]} "
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield left, right, f" {OPERATORS[type(node.op)]} "


def _instead(node: ast.expr) -> str:
    """Return what may stand in place of an expression by itself, or nothing."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
        return str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"bool({ast.unparse(node.operand)})"
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        other = CALLS.get(called.rpartition(".")[2])
        if other is not None and called.partition(".")[0] in (*CALLS, "math", "np"):
            arguments = ast.unparse(node)[len(called) :]
            return f"{called[: len(called) - len(called.rpartition('.')[2])]}{other}{arguments}"
    return ""


def applied(source: str, mutant: Mutant) -> str | None:
    """Return the changed source, with brackets kept; None if that is no Python, or the same program."""
    encoded = source.encode()
    between = encoded[mutant.start : mutant.end].decode()
    kept = ")" * between.split("#")[0].count(")"), "(" * between.split("#")[0].count("(")
    text = mutant.text if mutant.text.strip() == mutant.text else f"{kept[0]}{mutant.text}{kept[1]}"
    changed = (encoded[: mutant.start] + text.encode() + encoded[mutant.end :]).decode()
    try:
        return None if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)) else changed
    except SyntaxError:
        return None


def noticed(tests: list[str], markers: str) -> bool:
    """Run the tests with these markers; return whether one of them fails, or does not end."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", markers, *tests]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return True
    if ended.returncode not in (0, 1, 2, 5):  # 5: no such tests
        raise RuntimeError(f"pytest ended with {ended.returncode}: {ended.stdout.decode()[-500:]}")
    return ended.returncode in (1, 2)


def main() -> None:
    """Try some mutants, drawn by chance, and print the share that the tests notice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", type=Path, help="file of the package")
    parser.add_argument("tests", nargs="+", help="test files that are about it")
    parser.add_argument("--number", type=int, default=8, help="of mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="leave out slow tests")
    options = parser.parse_args()
    path = ROOT / options.module
    rounds = ["not slow"] if options.quick else ["not slow", "slow"]
    source = path.read_text("utf-8")
    if any(noticed(options.tests, each) for each in rounds):
        sys.exit(f"{options.module}: the tests fail without a change")
    every = mutants(source)
    random.Random(options.seed).shuffle(every)
    caught = tried = 0
    try:
        for mutant in every:
            if tried == options.number:
                break
            if (changed := applied(source, mutant)) is None:
                continue
            path.write_text(changed, "utf-8")
            tried += 1
            seen = any(noticed(options.tests, each) for each in rounds)
            caught += seen
            if not seen:
                was = source.splitlines()[mutant.line - 1].strip()
                print(f"  lives: {options.module}:{mutant.line}: {was}  [{mutant.text.strip()}]", flush=True)
    finally:
        path.write_text(source, "utf-8")
    print(f"{options.module}: {caught} of {tried} mutants noticed ({len(every)} possible)", flush=True)


if __name__ == "__main__":
    main()
