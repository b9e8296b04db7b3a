"""Filters: a condition on single events, in a small language, computed by Arrow; nothing looks beyond the event."""

from __future__ import annotations

import ast
import io
import math
import tokenize
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.reading.fields import (
    MISSING,
    TYPE,
    BrokenRuleError,
    Marks,
    as_text,
    is_text,
    null_rows,
    read_text,
    text_column,
    value_column,
    value_of,
)
from typing_extensions import override

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

Columns = Mapping[str, pa.Array]
Run = Callable[[Columns], Any]


def read_as(name: str, kind: str | None, value: Any) -> float | str | bool | None:
    """Return a value as the kind that a condition needs; None for no value."""
    if value is None or (isinstance(value, str) and not value):
        return None
    if kind is None:
        return True
    try:
        if kind != TRUTH:
            return value_of(value, whole=False) if kind == NUMBER else read_text("where", value)
    except BrokenRuleError as rule:
        raise _of_filter(name, kind, rule) from None
    found = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool | np.bool_):
        raise wrong_kind(name, kind)
    return bool(found)


def column_of_kind(name: str, kind: str | None, column: pa.Array) -> tuple[pa.Array, Marks]:
    """Return a column as the kind that a condition needs, null where it has no value, and which rows break a rule.

    Args:
        name: of the field.
        kind: what it is read as; None if it is only asked whether it is there.
        column: its text need not be valid, but text that is bytes must be called text (`unchecked_text`).
    """
    column = as_text(column) if kind == TEXT else column
    text = is_text(column.type)
    if pa.types.is_dictionary(column.type) and not text:
        column = column.dictionary_decode()
    whole, truth = pa.types.is_integer(column.type), pa.types.is_boolean(column.type)
    number = whole or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    if not text and not {NUMBER: number, TEXT: whole, TRUTH: truth, None: True}[kind]:
        return pa.nulls(len(column), KINDS[str(kind)]), [(~null_rows(column), wrong_kind(name, str(kind)))]
    if not text and kind in (TRUTH, None):
        return column, []
    found, marks = with_nulls(*(value_column(column, whole=False) if kind == NUMBER else text_column("where", column)))
    if kind is None:
        return found, []
    marks = [(mask, _of_filter(name, kind, rule)) for mask, rule in marks]
    if kind != TRUTH:
        return found, marks
    lower = pc.utf8_lower(found)
    known = pc.is_in(lower, pa.array(["true", "false", None])).to_numpy(zero_copy_only=False)
    return pc.equal(lower, "true"), [*marks, (~known, wrong_kind(name, TRUTH))]


def with_nulls(column: pa.Array, marks: Marks) -> tuple[pa.Array, Marks]:
    """Return a column with null where a value is missing, which then breaks no rule."""
    missing = np.zeros(len(column), np.bool_)
    for mask, rule in marks:
        missing |= mask & rule.code.endswith(f"_{MISSING}")
    others = [(mask & ~missing, rule) for mask, rule in marks if not rule.code.endswith(f"_{MISSING}")]
    return pc.if_else(pa.array(missing), pa.scalar(None, column.type), column), others


def _of_filter(name: str, kind: str, rule: BrokenRuleError) -> BrokenRuleError:
    """Return a rule about a field of an event as one about a field of the filter."""
    what = rule.code.rpartition("_")[2]
    return BrokenRuleError("where", TYPE if what == MISSING else what, str(wrong_kind(name, kind)))


def wrong_kind(name: str, kind: str) -> BrokenRuleError:
    """Return the rule that a field is of a kind."""
    whole = {NUMBER: "a finite number", TEXT: "valid text that is not too long, or an integer"}.get(kind, kind)
    return BrokenRuleError("where", TYPE, f"field `{name}`, which where reads, must be {whole}")


class _Words(ast.NodeTransformer):
    """Writes words, negative numbers and `field("a name")` as Python's constants and names."""

    @override
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(WORDS[node.id]), node) if node.id in WORDS else node

    @override
    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.USub | ast.UAdd) and isinstance(node.operand, ast.Constant):
            value = node.operand.value
            if isinstance(value, int | float) and not isinstance(value, bool):
                return ast.copy_location(ast.Constant(-value if isinstance(node.op, ast.USub) else value), node)
        return node

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="field"), args=[ast.Constant(value=str(name))], keywords=[]) if name:
                return ast.copy_location(ast.Name(name), node)
        node.args = [self.visit(each) for each in node.args]
        return node


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
    depth, level = 0, list[ast.AST]([tree.body])
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    if depth > DEEPEST:
        raise ValueError(f"where must have at most {DEEPEST} parts within each other")
    return _Words().visit(tree.body)  # type: ignore[no-any-return]


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
        elif part.kind != kind:
            what = "" if part.field is None else f"`{part.field}` "
            self._refuse(node, f"{what}must be {kind}{' here' * bool(what)}, and is {part.kind}")
        return part.run

    def _of(self, gives: str, compute: Callable[..., Any], kind: str, nodes: Sequence[ast.expr]) -> _Part:
        """Compile a function of some parts, all of a kind."""
        runs = [self._need(node, kind) for node in nodes]
        return _Part(gives, lambda columns: compute(*(run(columns) for run in runs)))

    def _part(self, node: ast.expr) -> _Part:  # noqa: PLR0911 - a branch for each part of the language
        match node:
            case ast.Name(id=name):
                return _Part(self.kinds.setdefault(name, None), lambda columns: columns[name], name)
            case ast.BoolOp(op=op, values=values):
                join = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
                return self._of(TRUTH, lambda *parts: reduce(join, parts), TRUTH, values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._of(TRUTH, pc.invert, TRUTH, [operand])
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=operand):
                negate = isinstance(op, ast.USub)
                return self._of(NUMBER, pc.negate if negate else lambda number: number, NUMBER, [operand])
            case ast.UnaryOp():
                self._refuse(node, "~ is not known here: write not")
            case ast.BinOp(op=op, left=left, right=right):
                if type(op) not in ARITHMETIC:
                    self._refuse(node, "operators are +, -, * and /")
                compute = ARITHMETIC[type(op)]
                return self._of(NUMBER, lambda *parts: _finite(compute(*parts)), NUMBER, [left, right])
            case ast.Compare():
                return self._compared(node)
            case ast.Call():
                return self._called(node)
        value = self._literal(node)
        scalar = pa.scalar(value)
        return _Part(_kind_of(value), lambda _: scalar)

    def _literal(self, node: ast.expr) -> bool | str | float:
        """Return what a number, a text or a truth value stands for."""
        if not isinstance(node, ast.Constant) or not isinstance(value := node.value, bool | str | int | float | None):
            self._refuse(node, "this is not known here: see Filters in docs/input.md for what is")
        if value is None:
            self._refuse(node, "nothing is equal to null: write is null, or is not null")
        if value == "":
            self._refuse(node, "an empty text is no value: write is null")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            self._refuse(node, "a text must be valid Unicode")
        if isinstance(value, bool | str):
            return value
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) > LARGEST):
            self._refuse(node, "numbers must be finite, and whole ones at most 2**53, for larger ones are not exact")
        return float(value)

    def _called(self, node: ast.Call) -> _Part:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        known = (*FUNCTIONS, *SEARCHES, *READINGS, "field")
        if called not in known:
            self._refuse(node, f"functions are {', '.join(known)}")
        wanted = 2 if called in SEARCHES else 1
        if len(node.args) != wanted or node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            self._refuse(node, f"{called} takes {wanted} argument{'s' * (wanted > 1)}")
        if called == "field":
            self._refuse(node, "field takes the name of a field, in quotes")
        first, kind = node.args[0], READINGS.get(called)
        if kind is not None:
            if not isinstance(first, ast.Name):
                self._refuse(first, f"{called} takes a field")
            return _Part(kind, self._need(first, kind))
        if called in SEARCHES:
            search, sought = SEARCHES[called], node.args[1]
            if not isinstance(sought, ast.Constant) or not isinstance(sought.value, str):
                self._refuse(sought, f"{called} takes a text in quotes here")
            pattern = self._literal(sought)
            return self._of(TRUTH, lambda text: search(text, pattern), TEXT, [first])
        taken, given, compute = FUNCTIONS[called]
        return self._of(given, compute, taken, [first])

    def _compared(self, node: ast.Compare) -> _Part:
        operator, right = node.ops[0], node.comparators[0]
        if any(isinstance(each, ast.Is | ast.IsNot) for each in node.ops):
            if len(node.ops) > 1 or not isinstance(right, ast.Constant) or right.value is not None:
                self._refuse(node, "is takes null alone: write == for others")
            asked, test = self._part(node.left).run, pc.is_null if isinstance(operator, ast.Is) else pc.is_valid
            return _Part(TRUTH, lambda columns: test(asked(columns)))
        if any(isinstance(each, ast.In | ast.NotIn) for each in node.ops):
            if len(node.ops) > 1:
                self._refuse(node, "in must be in brackets beside other comparisons")
            return self._among(node.left, right, inverted=isinstance(operator, ast.NotIn))
        sides = [node.left, *node.comparators]
        runs = [self._pair(*each) for each in zip(sides, node.ops, node.comparators, strict=False)]
        return _Part(TRUTH, lambda columns: reduce(pc.and_kleene, (run(columns) for run in runs)))

    def _among(self, left: ast.expr, right: ast.expr, *, inverted: bool) -> _Part:
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            self._refuse(right, "in takes numbers or texts in brackets: (404, 500), or one and a comma: (404,)")
        if not all(isinstance(each, ast.Constant) and each.value is not None for each in right.elts):
            self._refuse(right, "in takes numbers or texts alone, no fields")
        values = [self._literal(each) for each in right.elts]
        kind = _kind_of(values[0])
        for each in right.elts:
            self._need(each, kind)
        several = pa.array(values, KINDS[kind])

        def among(value: Any) -> Any:
            some = several
            if kind == NUMBER:  # is_in tells -0.0 from 0.0, == does not
                value, some = pc.add(value, 0.0), pc.add(several, 0.0)
            found = pc.if_else(pc.is_valid(value), pc.is_in(value, some), pa.scalar(None, pa.bool_()))
            return pc.invert(found) if inverted else found

        return self._of(TRUTH, among, kind, [left])

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


def _finite(numbers: Any) -> Any:
    """Return numbers; what is not finite is no value."""
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def _kind_of(value: bool | str | float) -> str:
    return TRUTH if isinstance(value, bool) else TEXT if isinstance(value, str) else NUMBER
