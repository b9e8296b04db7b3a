"""Filters: a condition on single events, in a small language, computed by Arrow; nothing looks beyond the event."""

from __future__ import annotations

import ast
import io
import math
import tokenize
import warnings
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.reading.kinds import KINDS, NUMBER, TEXT, TRUTH, read_as

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


LARGEST = 2**53
"""Whole numbers beyond are not exact in 64-bit floating point."""

COMPARISONS: Mapping[type, Callable[..., Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
ARITHMETIC: Mapping[type, Callable[..., Any]] = {
    ast.Add: pc.add,
    ast.Sub: pc.subtract,
    ast.Mult: pc.multiply,
    ast.Div: pc.divide,
}
FUNCTIONS: Mapping[str, tuple[str, str, Callable[..., Any]]] = {
    "lower": (TEXT, TEXT, pc.utf8_lower),
    "upper": (TEXT, TEXT, pc.utf8_upper),
    "trim": (TEXT, TEXT, pc.utf8_trim_whitespace),
    "length": (TEXT, NUMBER, lambda text: pc.utf8_length(text).cast(pa.float64())),
    "abs": (NUMBER, NUMBER, pc.abs),
}
"""Functions of one argument: what it is, what they give, and Arrow's function."""

SEARCHES = {"starts_with": pc.starts_with, "ends_with": pc.ends_with, "contains": pc.match_substring}
"""Functions of a text and a text in quotes."""

READINGS: Mapping[str, str] = {"number": NUMBER, "text": TEXT}
"""Functions that say what a field is read as."""

FIELD = "field"
Columns = Mapping[str, pa.Array]
Run = Callable[[Columns], Any]


class Filter:
    """A condition that an event must meet to count: `status >= 500 and country == "de"`.

    The language is a part of Python's, see Filters in docs/input.md. A field stands there by its name; `field("two
    words")` is one whose name is no word. What a field is read as follows from the condition alone: it is a number
    where it is compared with one. Where the condition does not say, as in `a == b`, `number(a)` or `text(a)` does. A
    field without a value, and a division by zero, give conditions that are neither true nor false, as in SQL; an event
    counts if the whole is true.

    *Privacy*: a filter is public, and looks at one event alone.

    Args:
        text: the condition, of at most 2,000 characters.

    Attributes:
        kinds: what each field is read as, by its name; of those that are only asked whether they are there, None.

    Raises:
        ValueError, TypeError: it is none; the message says at which character.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"where must be a condition such as 'status >= 500', got {type(text).__name__}")
        self.text = text
        compiler = _Compiler(text)
        self._run = compiler.condition(parse(text))
        self.kinds: dict[str, str | None] = dict(sorted(compiler.kinds.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return Filter, (self.text,)

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

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

    def accepts(self, values: Mapping[str, Any]) -> bool:
        """Tell whether a single event passes."""
        read = {name: read_as(name, kind, values.get(name)) for name, kind in self.kinds.items()}
        columns = {name: pa.array([read[name]], KINDS[kind or TRUTH]) for name, kind in self.kinds.items()}
        return bool(self.passes(columns, 1)[0])


class _Part(NamedTuple):
    """A part of a filter: what it is (None: a field that is not known yet), how it is computed, and of which field."""

    kind: str | None
    run: Run
    field: str | None = None


class _Compiler:
    """Makes Arrow computations of a filter, finds the kinds of its fields, and refuses what is not in the language."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str | None] = {}
        self.open: dict[str, ast.expr] = {}

    def condition(self, tree: ast.expr) -> Run:
        """Return how the whole is computed: compiled until no new kind is found, for `a == b and a > 1` says b."""
        before: dict[str, str | None] | None = None
        while self.kinds != before:
            before, self.open = dict(self.kinds), {}
            run = self._need(tree, TRUTH)
        if not self.kinds:
            self._refuse(None, "must use at least one field of the events")
        for name, node in sorted(self.open.items()):
            self._refuse(node, f"what `{name}` is cannot be told from this: say number({name}) or text({name})")
        return run

    def _refuse(self, node: ast.AST | None, rule: str) -> NoReturn:
        before = self.text.encode("utf-8", "surrogatepass")[: getattr(node, "col_offset", 0)]
        raise ValueError(f"where, character {len(before.decode('utf-8', 'ignore')) + 1}: {rule}")

    def _need(self, node: ast.expr, kind: str) -> Run:
        """Return how a part is computed that must be of a kind."""
        part = self._part(node)
        if part.field is not None and part.kind is None:
            self.kinds[part.field] = kind
        elif part.field is not None and part.kind != kind:
            self._refuse(node, f"`{part.field}` must be {kind} here, and is {part.kind} elsewhere")
        elif part.kind != kind:
            self._refuse(node, f"must be {kind}, and is {part.kind}")
        return part.run

    def _part(self, node: ast.expr) -> _Part:  # noqa: PLR0911 - a branch for each part of the language
        """Compile a part."""
        name = field(node)
        if name is not None:
            return _Part(self.kinds.setdefault(name, None), lambda columns: columns[name], name)
        match node:
            case ast.BoolOp(op=op, values=values):
                join = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
                return _joined(join, [self._need(each, TRUTH) for each in values])
            case ast.Compare():
                return self._compared(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self._need(operand, TRUTH)
                return _Part(TRUTH, lambda columns: pc.invert(inner(columns)))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                inner = self._need(operand, NUMBER)
                return _Part(NUMBER, (lambda columns: pc.negate(inner(columns))) if isinstance(op, ast.USub) else inner)
            case ast.UnaryOp():
                self._refuse(node, "~ is not known here: write not")
            case ast.BinOp(op=op, left=left, right=right):
                if type(op) not in ARITHMETIC:
                    self._refuse(node, "operators are +, -, * and /")
                one, other, compute = self._need(left, NUMBER), self._need(right, NUMBER), ARITHMETIC[type(op)]
                return _Part(NUMBER, lambda columns: _finite(compute(one(columns), other(columns))))
            case ast.Call():
                return self._called(node)
        value = self._literal(node)
        scalar = pa.scalar(value)
        return _Part(_kind_of(value), lambda _: scalar)

    def _literal(self, node: ast.expr) -> bool | str | float:
        """Return what a number, a text or a truth value stands for."""
        value = constant(node)
        if isinstance(value, str) and not value:
            self._refuse(node, "an empty text is no value: write is null")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            self._refuse(node, "a text must be valid Unicode")
        if isinstance(value, bool | str):
            return value
        if isinstance(value, int | float):
            if not math.isfinite(value) or (isinstance(value, int) and abs(value) > LARGEST):
                rule = "numbers must be finite, and whole ones at most 2**53, for larger ones are not exact"
                self._refuse(node, rule)
            return float(value)
        if is_null(node):
            self._refuse(node, "nothing is equal to null: write is null, or is not null")
        return self._refuse(node, "this is not known here: see Filters in docs/input.md for what is")

    def _called(self, node: ast.Call) -> _Part:
        """Compile a function."""
        called = node.func.id if isinstance(node.func, ast.Name) else None
        known = (*FUNCTIONS, *SEARCHES, *READINGS, FIELD)
        if called not in known:
            self._refuse(node, f"functions are {', '.join(known)}")
        wanted = 2 if called in SEARCHES else 1
        if len(node.args) != wanted or node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            self._refuse(node, f"{called} takes {wanted} argument{'s' * (wanted > 1)}")
        if called == FIELD:
            self._refuse(node, "field takes the name of a field, in quotes")
        first = node.args[0]
        if called in READINGS:
            if field(first) is None:
                self._refuse(first, f"{called} takes a field")
            return _Part(READINGS[called], self._need(first, READINGS[called]))
        if called in SEARCHES:
            searched, search = self._need(first, TEXT), SEARCHES[called]
            if not isinstance(constant(node.args[1]), str):
                self._refuse(node.args[1], f"{called} takes a text in quotes here")
            sought = self._literal(node.args[1])
            return _Part(TRUTH, lambda columns: search(searched(columns), sought))
        taken, given, compute = FUNCTIONS[str(called)]
        inner = self._need(first, taken)
        return _Part(given, lambda columns: compute(inner(columns)))

    def _compared(self, node: ast.Compare) -> _Part:
        """Compile a comparison, or several in a chain."""
        runs, left = [], node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.Is | ast.IsNot):
                if not is_null(right) or len(node.ops) > 1:
                    self._refuse(node, "is takes null alone: write == for others")
                runs.append(_after(self._part(left).run, pc.is_null if isinstance(operator, ast.Is) else pc.is_valid))
            elif isinstance(operator, ast.In | ast.NotIn):
                if len(node.ops) > 1:
                    self._refuse(node, "in must be in brackets beside other comparisons")
                runs.append(self._among(left, right, inverted=isinstance(operator, ast.NotIn)))
            else:
                runs.append(self._pair(left, operator, right))
            left = right
        return _joined(pc.and_kleene, runs)

    def _among(self, left: ast.expr, right: ast.expr, *, inverted: bool) -> Run:
        """Compile `x in (.., ..)`."""
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            self._refuse(right, "in takes numbers or texts in brackets: (404, 500), or one and a comma: (404,)")
        if any(constant(each) is None for each in right.elts):
            self._refuse(right, "in takes numbers or texts alone, no fields")
        values = [self._literal(each) for each in right.elts]
        kind = _kind_of(values[0])
        for each in right.elts:
            self._need(each, kind)
        inner = self._need(left, kind)

        def among(columns: Columns) -> Any:
            value, several = inner(columns), pa.array(values, KINDS[kind])
            if kind == NUMBER:  # is_in tells -0.0 from 0.0, == does not
                value, several = pc.add(value, 0.0), pc.add(several, 0.0)
            found = pc.if_else(pc.is_valid(value), pc.is_in(value, several), pa.scalar(None, pa.bool_()))
            return pc.invert(found) if inverted else found

        return among

    def _pair(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Run:
        """Compile a comparison of two parts, of which one may say what the other is."""
        parts = [self._part(left), self._part(right)]
        kind = parts[0].kind or parts[1].kind
        if kind is None:
            self.open |= {str(part.field): node for part, node in zip(parts, (left, right), strict=True)}
        elif kind == TRUTH and not isinstance(operator, ast.Eq | ast.NotEq):
            self._refuse(left, "true and false are compared by == and != alone")
        else:
            self._need(left, kind)
            self._need(right, kind)
        compare, (one, other) = COMPARISONS[type(operator)], parts
        return lambda columns: compare(one.run(columns), other.run(columns))


def _joined(join: Callable[[Any, Any], Any], runs: list[Run]) -> _Part:
    """Return conditions joined one after the other."""
    return _Part(TRUTH, lambda columns: reduce(join, (run(columns) for run in runs)))


def _after(run: Run, compute: Callable[[Any], Any]) -> Run:
    """Return one computation after another."""
    return lambda columns: compute(run(columns))


def _finite(numbers: Any) -> Any:
    """Return numbers; what is not finite is no value."""
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def _kind_of(value: bool | str | float) -> str:
    """Return the kind of a constant."""
    return TRUTH if isinstance(value, bool) else TEXT if isinstance(value, str) else NUMBER
