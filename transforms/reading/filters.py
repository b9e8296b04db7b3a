"""Filters: a condition on single events, in a small language, computed by Arrow; nothing looks beyond the event."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NUMBER, TEXT, TRUTH = "a number", "text", "true or false"
KINDS: Mapping[str, pa.DataType] = {NUMBER: pa.float64(), TEXT: pa.string(), TRUTH: pa.bool_()}
"""What a field may be read as, and how Arrow holds it; null where an event has no value."""

LONGEST_FILTER = 2_000  # characters
DEEPEST = 100  # parts within each other, which are walked by recursion
LARGEST = 2**53
"""Whole numbers beyond are not exact in 64-bit floating point."""

WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
"""Names that are no fields."""

COMPARISONS: Mapping[type, Callable[..., Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
SEARCHES = {"starts_with": pc.starts_with, "ends_with": pc.ends_with, "contains": pc.match_substring}
"""Functions of a text and a text in quotes."""

READINGS: Mapping[str, str] = {"number": NUMBER, "text": TEXT}
"""Functions that say what a field is read as."""

FUNCTIONS = 'number(x), text(x), lower(x), starts_with(x, "a"), ends_with(x, "a"), contains(x, "a"), field("a name")'

Columns = Mapping[str, pa.Array]
Run = Callable[[Columns], Any]


def _parse(text: str) -> ast.expr:
    """Return the tree of a filter; which parts are allowed is checked as they are compiled."""
    if not isinstance(text, str):
        raise TypeError(f"where must be a condition such as 'status >= 500', got {type(text).__name__}")
    if len(text) > LONGEST_FILTER:
        raise ValueError(f"where must have at most {LONGEST_FILTER:,} characters, got {len(text):,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"where, character {max(error.offset or 1, 1)}: {error.msg}") from None
    except (Warning, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"where must be a condition such as status >= 500 ({type(error).__name__})") from None
    depth, level = 0, list[ast.AST]([tree])
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    if depth > DEEPEST:
        raise ValueError(f"where must have at most {DEEPEST} parts within each other")
    return tree


class Filter:
    """A condition that an event must meet to count: `status >= 500 and country == "de"`.

    The language is a part of Python's, see Filters in docs/input.md. A field stands there by its name; `field("two
    words")` is one whose name is no word. What a field is read as follows from the condition alone: it is a number
    where it is compared with one. Where nothing before says it, as in `a == b`, `number(a)` or `text(a)` does. A
    field without a value gives conditions that are neither true nor false, as in SQL; an event counts if the whole is
    true.

    *Privacy*: a filter is public, and looks at one event alone.

    Args:
        text: the condition, of at most 2,000 characters.

    Attributes:
        kinds: what each field is read as, by its name; of those that are only asked whether they are there, None.

    Raises:
        ValueError, TypeError: it is none; the message quotes the part.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        tree, compiler = _parse(text), _Compiler(text)
        self._run = compiler.need(tree, TRUTH)
        if not compiler.kinds:
            compiler.refuse(tree, "must use at least one field of the events")
        self.kinds = dict(sorted(compiler.kinds.items()))

    def describe(self) -> str:
        """Return the condition."""
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return Filter, (self.text,)

    def passes(self, columns: Columns, rows: int) -> np.ndarray:
        """Tell which events pass.

        Args:
            columns: the fields of `kinds`, each as Arrow holds its kind; null for no value. A field that is only asked
                whether it is there may be of any type.
            rows: their length.
        """
        found = self._run(columns)
        if isinstance(found, pa.Scalar):
            return np.full(rows, found.as_py() is True)
        return np.array(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)


def _field(node: ast.expr) -> str | None:
    """Return the name of a field, if a part is one."""
    match node:
        case ast.Name(id=name) if name not in WORDS:
            return name
        case ast.Call(func=ast.Name(id="field"), args=[ast.Constant(value=str(name))], keywords=[]) if name:
            return name
    return None


class _Compiler:
    """Makes Arrow computations of a filter, finds the kinds of its fields, and refuses what is not in the language."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str | None] = {}

    def refuse(self, node: ast.AST, rule: str) -> NoReturn:
        """Raise what is wrong with a part."""
        raise ValueError(f"where, at `{ast.get_source_segment(self.text, node)}`: {rule}")

    def _kind(self, node: ast.expr) -> str | None:
        """Return what a part is; None for a field of which nothing is known yet."""
        name = _field(node)
        if name is not None:
            return self.kinds.setdefault(name, None)
        match node:
            case ast.Call(func=ast.Name(id=called)):
                return TEXT if called == "lower" else READINGS.get(called, TRUTH)
            case ast.BoolOp() | ast.Compare() | ast.Call() | ast.UnaryOp(op=ast.Not()):
                return TRUTH
        return _kind_of(self._literal(node))

    def need(self, node: ast.expr, kind: str) -> Run:
        """Return how a part is computed that must be of a kind."""
        found, name = self._kind(node), _field(node)
        if found not in (kind, None):
            self.refuse(node, f"must be {kind} here, and is {found}")
        if name is not None:
            self.kinds[name] = kind
            return lambda columns: columns[name]
        match node:
            case ast.BoolOp(op=op, values=values):
                runs = [self.need(each, TRUTH) for each in values]
                join = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
                return lambda columns: reduce(join, (run(columns) for run in runs))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                run = self.need(operand, TRUTH)
                return lambda columns: pc.invert(run(columns))
            case ast.Compare():
                return self._compared(node)
            case ast.Call():
                return self._called(node)
        scalar = pa.scalar(self._literal(node))
        return lambda _: scalar

    def _literal(self, node: ast.expr) -> bool | str | float:
        """Return what a number, a text or a truth value stands for."""
        try:
            value = WORDS[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)
        except (KeyError, ValueError, TypeError):
            self.refuse(node, "this is not known here: see Filters in docs/input.md for what is")
        if value is None:
            self.refuse(node, "nothing is equal to null: write is null, or is not null")
        if value == "":
            self.refuse(node, "an empty text is no value: write is null")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            self.refuse(node, "a text must be valid Unicode")
        if isinstance(value, bool | str):
            return value
        if not isinstance(value, int | float):
            self.refuse(node, "must be a number, a text in quotes, true or false")
        if (isinstance(value, int) and abs(value) > LARGEST) or not math.isfinite(value):
            self.refuse(node, "numbers must be finite, and whole ones at most 2**53, for larger ones are not exact")
        return float(value)

    def _called(self, node: ast.Call) -> Run:
        match node:
            case ast.Call(func=ast.Name(id="lower"), args=[part], keywords=[]):
                run = self.need(part, TEXT)
                return lambda columns: pc.utf8_lower(run(columns))
            case ast.Call(func=ast.Name(id=name), args=[part], keywords=[]) if name in READINGS and _field(part):
                return self.need(part, READINGS[name])
            case ast.Call(func=ast.Name(id=name), args=[part, sought], keywords=[]) if name in SEARCHES:
                search, text, run = SEARCHES[name], self._literal(sought), self.need(part, TEXT)
                if isinstance(text, str):
                    return lambda columns: search(run(columns), text)
        self.refuse(node, f"functions are {FUNCTIONS}")

    def _compared(self, node: ast.Compare) -> Run:
        match node:
            case ast.Compare(
                left=left,
                ops=[ast.Is() | ast.IsNot() as asked],
                comparators=[ast.Name(id="null") | ast.Constant(value=None)],
            ) if (name := _field(left)) is not None:
                self.kinds.setdefault(name, None)
                test = pc.is_null if isinstance(asked, ast.Is) else pc.is_valid
                return lambda columns: test(columns[name])
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as among], comparators=[right]):
                return self._among(left, right, inverted=isinstance(among, ast.NotIn))
        if any(type(each) not in COMPARISONS for each in node.ops):
            self.refuse(
                node, "is takes a field and null; is and in must be in brackets when combined with other comparisons"
            )
        sides = [node.left, *node.comparators]
        runs = [self._pair(*each) for each in zip(sides, node.ops, node.comparators, strict=False)]
        return lambda columns: reduce(pc.and_kleene, (run(columns) for run in runs))

    def _among(self, left: ast.expr, right: ast.expr, *, inverted: bool) -> Run:
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            self.refuse(right, "in takes numbers or texts in brackets: (404, 500), or one and a comma: (404,)")
        values = [self._literal(each) for each in right.elts]
        for each in right.elts:
            self.need(each, _kind_of(values[0]))
        run = self.need(left, _kind_of(values[0]))

        def among(columns: Columns) -> Any:
            column = run(columns)
            found = reduce(pc.or_kleene, (pc.equal(column, value) for value in values))
            return pc.invert(found) if inverted else found

        return among

    def _pair(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Run:
        """Compile a comparison of two parts, of which one may say what the other is."""
        kind = self._kind(left) or self._kind(right)
        if kind is None:
            name = _field(left)
            self.refuse(left, f"nothing before says what this is: write number({name}) or text({name})")
        if kind == TRUTH and not isinstance(operator, ast.Eq | ast.NotEq):
            self.refuse(left, "true and false are compared by == and != alone")
        one, other, compare = self.need(left, kind), self.need(right, kind), COMPARISONS[type(operator)]
        return lambda columns: compare(one(columns), other(columns))


def _kind_of(value: bool | str | float) -> str:
    return TRUTH if isinstance(value, bool) else TEXT if isinstance(value, str) else NUMBER
