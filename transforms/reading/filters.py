"""Filters: a condition on single events, in a small language, computed by Arrow; nothing looks beyond the event."""

from __future__ import annotations

import ast
import io
import math
import tokenize
import warnings
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.reading.columns import (
    Marked,
    as_text,
    is_number,
    is_text,
    text_column,
    value_column,
    with_nulls,
)
from privstream.transforms.reading.fields import TYPE, BrokenRuleError
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
SEARCHES = {"starts_with": pc.starts_with, "ends_with": pc.ends_with, "contains": pc.match_substring}
"""Functions of a text and a text in quotes."""

READINGS: Mapping[str, str] = {"number": NUMBER, "text": TEXT}
"""Functions that say what a field is read as."""

Columns = Mapping[str, pa.Array]
Run = Callable[[Columns], Any]


def column_of_kind(name: str, kind: str | None, column: pa.Array, decimal: str | None = None) -> Marked:
    """Return a column as the kind that a condition needs, null where it has no value, and which rows break a rule.

    Args:
        name: of the field.
        kind: what it is read as; None if it is only asked whether it is there, which is true then.
        column: its text need not be valid, but text that is bytes must be called text (`unchecked_text`).
        decimal: see `value_column`.
    """
    column = as_text(column) if kind == TEXT else column
    text = is_text(column.type)
    if pa.types.is_dictionary(column.type) and not text:
        column = column.dictionary_decode()
    plain = {NUMBER: is_number, TEXT: pa.types.is_integer, TRUTH: pa.types.is_boolean, None: lambda _: True}[kind]
    needed = {NUMBER: "a finite number", TEXT: "valid text that is not too long, or an integer"}.get(str(kind), kind)
    rule = BrokenRuleError("where", TYPE, f"field `{name}`, which where reads, must be {needed}")
    if not (text or plain(column.type) or pa.types.is_null(column.type)):
        raise rule
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), KINDS[kind or TRUTH]), []
    if not text and kind in (TRUTH, None):
        return column if kind else pc.if_else(column.is_valid(), True, pa.scalar(None, pa.bool_())), []
    read = value_column(column, decimal=decimal) if kind == NUMBER else text_column("where", column)
    found, marks = with_nulls(*read)
    if kind is None:
        return pc.if_else(found.is_valid(), True, pa.scalar(None, pa.bool_())), []
    wrong = [mask for mask, _ in marks]
    if kind == TRUTH:
        lower = pc.utf8_lower(found)
        known = pc.is_in(lower, pa.array(["true", "false", None])).to_numpy(zero_copy_only=False)
        found, wrong = pc.equal(lower, "true"), [*wrong, ~known]
    return found, [(mask, rule) for mask in wrong]


class _Words(ast.NodeTransformer):
    """Writes words, negative numbers and `field("a name")` as Python's constants and names."""

    @override
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(WORDS[node.id]), node) if node.id in WORDS else node

    @override
    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        match self.generic_visit(node):
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
                value, bool
            ):
                return ast.copy_location(ast.Constant(-value), node)
        return node

    @override
    def visit_Call(self, node: ast.Call) -> ast.AST:
        match self.generic_visit(node):
            case ast.Call(func=ast.Name(id="field"), args=[ast.Constant(value=str(name))], keywords=[]) if name:
                return ast.copy_location(ast.Name(name), node)
        return node


def _parse(text: str) -> ast.expr:
    """Return the tree of a filter; which parts are allowed is checked as they are compiled."""
    if not isinstance(text, str):
        raise TypeError(f"where must be a condition such as 'status >= 500', got {type(text).__name__}")
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
    field without a value gives conditions that are neither true nor false, as in SQL; an event counts if the whole is
    true.

    *Privacy*: a filter is public, and looks at one event alone.

    Args:
        text: the condition, of at most 2,000 characters.

    Attributes:
        kinds: what each field is read as, by its name; of those that are only asked whether they are there, None.

    Raises:
        ValueError, TypeError: it is none; the message says at which character.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        tree, compiler = _parse(text), _Compiler(text)
        before: dict[str, str | None] | None = None
        while compiler.kinds != before:  # until no kind is found: `a == b and a > 1` says what b is
            before, compiler.open = dict(compiler.kinds), {}
            self._run = compiler.need(tree, TRUTH)
        if not compiler.kinds:
            compiler.refuse(tree, "must use at least one field of the events")
        for name, node in sorted(compiler.open.items()):
            compiler.refuse(node, f"what `{name}` is cannot be told from this: say number({name}) or text({name})")
        self.kinds = dict(sorted(compiler.kinds.items()))

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


class _Compiler:
    """Makes Arrow computations of a filter, finds the kinds of its fields, and refuses what is not in the language.

    Attributes:
        kinds: of fields, as far as they are known.
        open: the fields that are compared with each other, while nothing says what they are.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str | None] = {}
        self.open: dict[str, ast.expr] = {}

    def refuse(self, node: ast.AST, rule: str) -> NoReturn:
        """Raise what is wrong with a part."""
        before = self.text.encode("utf-8", "surrogatepass")[: getattr(node, "col_offset", 0)]
        raise ValueError(f"where, character {len(before.decode('utf-8', 'ignore')) + 1}: {rule}")

    def _kind(self, node: ast.expr) -> str | None:
        """Return what a part is; None for a field of which nothing is known yet."""
        match node:
            case ast.Name(id=name):
                return self.kinds.setdefault(name, None)
            case ast.Constant():
                return _kind_of(self._literal(node))
            case ast.Call(func=ast.Name(id=name)):
                return TEXT if name == "lower" else READINGS.get(name, TRUTH)
            case ast.BoolOp() | ast.Compare() | ast.Call() | ast.UnaryOp(op=ast.Not()):
                return TRUTH
        self.refuse(node, "this is not known here: see Filters in docs/input.md for what is")

    def need(self, node: ast.expr, kind: str) -> Run:
        """Return how a part is computed that must be of a kind."""
        found = self._kind(node)
        if found not in (kind, None):
            what = f"`{node.id}` must be {kind} here" if isinstance(node, ast.Name) else f"must be {kind}"
            self.refuse(node, f"{what}, and is {found}")
        match node:
            case ast.Name(id=name):
                self.kinds[name] = kind
                return lambda columns: columns[name]
            case ast.Constant():
                scalar = pa.scalar(self._literal(node))
                return lambda _: scalar
            case ast.BoolOp(op=op, values=values):
                runs = [self.need(each, TRUTH) for each in values]
                join = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
                return lambda columns: reduce(join, (run(columns) for run in runs))
            case ast.UnaryOp(operand=operand):
                run = self.need(operand, TRUTH)
                return lambda columns: pc.invert(run(columns))
            case ast.Compare():
                return self._compared(node)
        assert isinstance(node, ast.Call)
        return self._called(node)

    def _literal(self, node: ast.expr) -> bool | str | float:
        """Return what a number, a text or a truth value stands for."""
        if not isinstance(node, ast.Constant) or not isinstance(value := node.value, bool | str | int | float | None):
            self.refuse(node, "must be a number, a text in quotes, true or false")
        if value is None:
            self.refuse(node, "nothing is equal to null: write is null, or is not null")
        if value == "":
            self.refuse(node, "an empty text is no value: write is null")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            self.refuse(node, "a text must be valid Unicode")
        if isinstance(value, bool | str):
            return value
        if not math.isfinite(value) or (isinstance(value, int) and abs(value) > LARGEST):
            self.refuse(node, "numbers must be finite, and whole ones at most 2**53, for larger ones are not exact")
        return float(value)

    def _called(self, node: ast.Call) -> Run:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        known = ("lower", *SEARCHES, *READINGS, "field")
        if called not in known:
            self.refuse(node, f"functions are {', '.join(known)}")
        wanted = 2 if called in SEARCHES else 1
        if len(node.args) != wanted or node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            self.refuse(node, f"{called} takes {wanted} argument{'s' * (wanted > 1)}")
        if called == "field":
            self.refuse(node, "field takes the name of a field, in quotes")
        if called in READINGS and not isinstance(node.args[0], ast.Name):
            self.refuse(node.args[0], f"{called} takes a field")
        run = self.need(node.args[0], READINGS.get(called, TEXT))
        if called in READINGS:
            return run
        if called == "lower":
            return lambda columns: pc.utf8_lower(run(columns))
        search, sought = SEARCHES[called], self._literal(node.args[1])
        if not isinstance(sought, str):
            self.refuse(node.args[1], f"{called} takes a text in quotes here")
        return lambda columns: search(run(columns), sought)

    def _compared(self, node: ast.Compare) -> Run:
        match node:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Is() | ast.IsNot() as asked], comparators=[ast.Constant(value=None)]
            ):
                self.kinds.setdefault(name, None)
                test = pc.is_null if isinstance(asked, ast.Is) else pc.is_valid
                return lambda columns: test(columns[name])
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as among], comparators=[right]):
                return self._among(left, right, inverted=isinstance(among, ast.NotIn))
        if any(type(each) not in COMPARISONS for each in node.ops):
            self.refuse(node, "is takes a field and null; is and in must be in brackets beside other comparisons")
        sides = [node.left, *node.comparators]
        runs = [self._pair(*each) for each in zip(sides, node.ops, node.comparators, strict=False)]
        return lambda columns: reduce(pc.and_kleene, (run(columns) for run in runs))

    def _among(self, left: ast.expr, right: ast.expr, *, inverted: bool) -> Run:
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            self.refuse(right, "in takes numbers or texts in brackets: (404, 500), or one and a comma: (404,)")
        values = [self._literal(each) for each in right.elts]
        kind = _kind_of(values[0])
        for each in right.elts:
            self.need(each, kind)
        several, run = pa.array(values, KINDS[kind]), self.need(left, kind)

        def among(columns: Columns) -> Any:
            value, some = run(columns), several
            if kind == NUMBER:  # is_in tells -0.0 from 0.0, == does not
                value, some = pc.add(value, 0.0), pc.add(several, 0.0)
            found = pc.if_else(pc.is_valid(value), pc.is_in(value, some), pa.scalar(None, pa.bool_()))
            return pc.invert(found) if inverted else found

        return among

    def _pair(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Run:
        """Compile a comparison of two parts, of which one may say what the other is."""
        kind = self._kind(left) or self._kind(right)
        if kind is None:
            self.open |= {side.id: side for side in (left, right) if isinstance(side, ast.Name)}
            return lambda _: pa.scalar(None, pa.bool_())  # compiled anew once it is known
        if kind == TRUTH and not isinstance(operator, ast.Eq | ast.NotEq):
            self.refuse(left, "true and false are compared by == and != alone")
        one, other, compare = self.need(left, kind), self.need(right, kind), COMPARISONS[type(operator)]
        return lambda columns: compare(one(columns), other(columns))


def _kind_of(value: bool | str | float) -> str:
    return TRUTH if isinstance(value, bool) else TEXT if isinstance(value, str) else NUMBER
