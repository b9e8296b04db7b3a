"""Filters: a condition on single events, in a small language without anything that looks beyond the event."""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.transforms.events.event_columns import (
    as_text,
    is_text,
    read_text,
    text_column,
    value_column,
    value_of,
)
from privstream.transforms.events.event_fields import MISSING, TYPE, BrokenRuleError
from privstream.transforms.events.times import Marks, null_rows

NUMBER, TEXT, TRUTH = "a number", "text", "true or false"
KINDS: Mapping[str, pa.DataType] = {NUMBER: pa.float64(), TEXT: pa.string(), TRUTH: pa.bool_()}
"""What a field may be read as, and how Arrow holds it."""

LONGEST_FILTER = 2_000
"""Characters of a filter."""

MISWRITTEN: Mapping[str, str] = {
    r"=[<>]": "at least is written >=, and at most <=",
    r"<>|!(?!=)": "not equal is written !=, and not in words",
    r"&|\|": "conditions are joined by and, or",
    r"(?<![=!<>])=(?!=)": "equal is written ==",
}
"""What is written otherwise in other languages, as a regular expression, and how it is written here."""

DEEPEST = 100
"""So many parts may be within each other: they are walked by recursion."""

LARGEST = 2**53
"""Whole numbers beyond are not exact in 64-bit floating point."""

COMPARISONS: Mapping[type, str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
ARITHMETIC: Mapping[type, str] = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
"""Names that are no fields."""

FUNCTIONS: Mapping[str, tuple[str, str, str]] = {
    "lower": (TEXT, TEXT, "utf8_lower"),
    "upper": (TEXT, TEXT, "utf8_upper"),
    "trim": (TEXT, TEXT, "utf8_trim_whitespace"),
    "length": (TEXT, NUMBER, "utf8_length"),
    "abs": (NUMBER, NUMBER, "abs"),
}
"""Functions of one argument: what it is, what they give, and Arrow's function."""

SEARCHES: Mapping[str, str] = {
    "starts_with": "starts_with",
    "ends_with": "ends_with",
    "contains": "match_substring",
}
"""Functions of a text and a text in quotes, and Arrow's functions."""

READINGS: Mapping[str, str] = {"number": NUMBER, "text": TEXT}
"""Functions that say what a field is read as."""

FIELD = "field"
"""The function that names a field in quotes."""


class Filter:
    """A condition that an event must meet to count: `status >= 500 and country == "de"`.

    The language is that of conditions in Python: `==`, `!=`, `<`, `<=`, `>`, `>=`, `in (.., ..)`, `not in`, `is null`,
    `is not null`, `and`, `or`, `not`, `+`, `-`, `*`, `/`, brackets, numbers, texts in quotes, `true`, `false`, and the
    functions `lower`, `upper`, `trim`, `length`, `abs`, `starts_with`, `ends_with` and `contains`. A field stands there
    by its name; `field("two words")` is one whose name is no word.

    What a field is read as follows from the condition alone: it is a number where it is compared with one. Where the
    condition does not say, as in `a == b`, `number(a)` or `text(a)` does. A field without a value, and a division by
    zero, give conditions that are neither true nor false, as in SQL; an event counts if the whole is true.

    *Privacy*: a filter is public, and looks at one event alone: what is in other events changes nothing. So who adds or
    removes a person adds or removes the events of that person that pass.

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
        self._tree = _parse(text)
        self.kinds: dict[str, str | None] = _Kinds(text).of(self._tree)

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    def passes(self, columns: Mapping[str, pa.Array], rows: int) -> np.ndarray:
        """Tell which events pass.

        Args:
            columns: the fields of `kinds`, each as Arrow holds its kind; null for no value. A field that is only asked
                whether it is there may be of any type.
            rows: their length.

        Returns:
            One truth value for each.
        """
        found = _evaluate(self._tree, columns)
        if isinstance(found, pa.Scalar):
            return np.full(rows, found.as_py() is True)
        return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)

    def accepts(self, values: Mapping[str, Any]) -> bool:
        """Tell whether a single event passes.

        Raises:
            BrokenRuleError: a field is of another kind than the condition needs.
        """
        columns = {}
        for name, kind in self.kinds.items():
            value = read_as(name, kind, values.get(name))
            columns[name] = pa.array([value], pa.bool_() if kind is None else KINDS[kind])
        return bool(self.passes(columns, 1)[0])


def read_as(name: str, kind: str | None, value: Any) -> float | str | bool | None:
    """Return a value as the kind that a condition needs; None for no value.

    Raises:
        BrokenRuleError: it is of another kind.
    """
    if value is None or (isinstance(value, str) and not value):
        return None
    if kind is None:
        return True
    try:
        if kind == NUMBER:
            return value_of(value, whole=False)
        if kind == TEXT:
            return read_text("where", value)
    except BrokenRuleError as rule:
        raise of_filter(name, kind, rule) from None
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise wrong_kind(name, kind)


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
    truth = pa.types.is_boolean(column.type)
    number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    fits = {NUMBER: number, TEXT: pa.types.is_integer(column.type), TRUTH: truth, None: True}[kind]
    if not text and not fits:
        return pa.nulls(len(column), KINDS[str(kind)]), [(~null_rows(column), wrong_kind(name, str(kind)))]
    if kind == NUMBER:
        found, marks = with_nulls(*value_column(column, whole=False))
    elif text or kind == TEXT:
        found, marks = with_nulls(*text_column("where", column))
    else:
        return column, []
    if kind is None:
        return found, []
    marks = [(mask, of_filter(name, kind, rule)) for mask, rule in marks]
    if kind != TRUTH:
        return found, marks
    lower = pc.utf8_lower(found)
    known = pc.is_in(lower, pa.array(["true", "false"]))
    neither = ~np.asarray(pc.fill_null(known, True).to_numpy(zero_copy_only=False), np.bool_)
    neither &= found.is_valid().to_numpy(zero_copy_only=False)
    return pc.equal(lower, "true"), [*marks, (neither, wrong_kind(name, TRUTH))]


def with_nulls(column: pa.Array, marks: Marks) -> tuple[pa.Array, Marks]:
    """Return a column with null where a value is missing, which then breaks no rule."""
    missing = np.zeros(len(column), np.bool_)
    for mask, rule in marks:
        missing |= mask & rule.code.endswith(f"_{MISSING}")
    others = [(mask & ~missing, rule) for mask, rule in marks if not rule.code.endswith(f"_{MISSING}")]
    return pc.if_else(pa.array(missing), pa.scalar(None, column.type), column), others


def of_filter(name: str, kind: str, rule: BrokenRuleError) -> BrokenRuleError:
    """Return a rule about a field of an event as one about a field of the filter."""
    what = rule.code.rpartition("_")[2]
    return wrong_kind(name, kind) if what in (TYPE, MISSING) else BrokenRuleError("where", what, _rule(name, kind))


def wrong_kind(name: str, kind: str) -> BrokenRuleError:
    """Return the rule that a field is of a kind."""
    return BrokenRuleError("where", TYPE, _rule(name, kind))


def _rule(name: str, kind: str) -> str:
    """Say what a field must be."""
    whole = {NUMBER: "a finite number", TEXT: "valid text that is not too long, or an integer"}.get(kind, kind)
    return f"field `{name}`, which where reads, must be {whole}"


def _refuse(text: str, node: ast.AST | None, rule: str) -> NoReturn:
    """Refuse a filter at the place of a part of it."""
    place = 1 if node is None else _place(text, node)
    raise ValueError(f"where, character {place}: {rule}")


def _place(text: str, node: ast.AST) -> int:
    """Return the number of a character, from 1, where a part begins: Python says how many bytes are before it."""
    return len(text.encode("utf-8", "surrogatepass")[: getattr(node, "col_offset", 0)].decode("utf-8", "ignore")) + 1


def _depth(tree: ast.AST) -> int:
    """Return how many parts of a filter are within each other at most."""
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _parse(text: str) -> ast.expr:
    """Return the tree of a filter; which parts are allowed is checked with their kinds."""
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
        comments = [
            token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
        ]
    except SyntaxError as error:
        hint = next((f"; {told}" for wrong, told in MISWRITTEN.items() if re.search(wrong, text)), "")
        raise ValueError(f"where, character {max(error.offset or 1, 1)}: {error.msg}{hint}") from None
    except (Warning, ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"where must be a condition such as status >= 500 ({type(error).__name__})") from None
    if comments:
        raise ValueError(f"where, character {comments[0].start[1] + 1}: # must stand in quotes only")
    if _depth(tree) > DEEPEST:
        raise ValueError(f"where must have at most {DEEPEST} parts within each other")
    return tree.body


def _field(node: ast.AST) -> str | None:
    """Return the name of the field that a part of a filter is; None if it is none."""
    if isinstance(node, ast.Name) and node.id not in WORDS:
        return node.id
    if _called(node) == FIELD and isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        (argument,) = node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and argument.value:
            return argument.value
    return None


def _called(node: ast.AST) -> str | None:
    """Return the name of the function that is called."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def _is_null(node: ast.AST) -> bool:
    """Tell whether a part of a filter is the word for no value."""
    return (isinstance(node, ast.Name) and node.id == "null") or (isinstance(node, ast.Constant) and node.value is None)


def _constant(node: ast.AST) -> Any:
    """Return what a number, a text or a truth value stands for; None for anything else."""
    if isinstance(node, ast.Name):
        return WORDS.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _constant(node.operand)
        if isinstance(inner, bool) or not isinstance(inner, int | float):
            return None
        return -inner if isinstance(node.op, ast.USub) else inner
    return node.value if isinstance(node, ast.Constant) else None


class _Kinds:
    """Finds the kinds of fields, and refuses whatever is not in the language.

    Args:
        text: the filter, for places in messages.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.found: dict[str, str | None] = {}
        self.places: dict[str, ast.AST] = {}
        self.open: set[str] = set()

    def of(self, tree: ast.expr) -> dict[str, str | None]:
        """Return the kinds of all fields: walk the tree until nothing new is found, for `a == b and a > 1` says b."""
        before: dict[str, str | None] | None = None
        while self.found != before:
            before = dict(self.found)
            self.open.clear()
            self._need(tree, TRUTH)
        if not self.found:
            _refuse(self.text, None, "must use at least one field of the events")
        for name in sorted(self.open):
            rule = f"what `{name}` is cannot be told from this: say number({name}) or text({name})"
            _refuse(self.text, self.places[name], rule)
        return dict(sorted(self.found.items()))

    def _need(self, node: ast.expr, kind: str) -> None:
        """Make sure that a part is of a kind."""
        name = _field(node)
        if name is not None:
            self._see(name, node, kind)
        elif (found := self._kind(node)) != kind:
            _refuse(self.text, node, f"must be {kind}" + (f", and is {found}" if found else ""))

    def _see(self, name: str, node: ast.AST, kind: str | None) -> None:
        """Note a field, and its kind if that is known here."""
        self.places.setdefault(name, node)
        known = self.found.setdefault(name, None)
        if kind is not None and known is not None and known != kind:
            _refuse(self.text, node, f"`{name}` must be {kind} here, and is {known} elsewhere")
        self.found[name] = known or kind

    def _kind(self, node: ast.expr) -> str | None:
        """Return the kind of a part; None for a field that is not known yet."""
        name = _field(node)
        if name is not None:
            self._see(name, node, None)
            return self.found[name]
        if isinstance(node, ast.BoolOp):
            for each in node.values:
                self._need(each, TRUTH)
            return TRUTH
        if isinstance(node, ast.Compare):
            self._compare(node)
            return TRUTH
        if isinstance(node, ast.UnaryOp | ast.BinOp):
            return self._calculated(node)
        return self._call(node) if isinstance(node, ast.Call) else self._literal(node)

    def _calculated(self, node: ast.UnaryOp | ast.BinOp) -> str:
        """Return the kind of `not x`, `-x` or `x + y`."""
        if isinstance(node, ast.BinOp):
            if type(node.op) not in ARITHMETIC:
                _refuse(self.text, node, "operators are +, -, * and /")
            self._need(node.left, NUMBER)
            self._need(node.right, NUMBER)
            return NUMBER
        kind = TRUTH if isinstance(node.op, ast.Not) else NUMBER
        if isinstance(node.op, ast.Invert):
            _refuse(self.text, node, "~ is not known here: write not")
        self._need(node.operand, kind)
        return kind

    def _literal(self, node: ast.expr) -> str:
        """Return the kind of a number, a text or a truth value."""
        value = _constant(node)
        if isinstance(value, bool):
            return TRUTH
        if isinstance(value, str):
            if not value:
                _refuse(self.text, node, "an empty text is no value: write is null")
            if any("\ud800" <= character <= "\udfff" for character in value):
                _refuse(self.text, node, "a text must be valid Unicode")
            return TEXT
        if isinstance(value, int | float):
            if not math.isfinite(value) or (isinstance(value, int) and abs(value) > LARGEST):
                _refuse(
                    self.text,
                    node,
                    "numbers must be finite, and whole ones at most 2**53, for larger ones are not exact",
                )
            return NUMBER
        if _is_null(node):
            _refuse(self.text, node, "nothing is equal to null: write is null, or is not null")
        return _refuse(self.text, node, "this is not known here: see Filters in docs/input.md for what is")

    def _call(self, node: ast.Call) -> str:
        """Return the kind of what a function gives."""
        called = _called(node)
        known = (*FUNCTIONS, *SEARCHES, *READINGS, FIELD)
        if called not in known:
            _refuse(self.text, node, f"functions are {', '.join(known)}")
        wanted = 2 if called in SEARCHES else 1
        if len(node.args) != wanted or node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
            _refuse(self.text, node, f"{called} takes {wanted} argument{'s' * (wanted > 1)}")
        if called == FIELD:
            _refuse(self.text, node, "field takes the name of a field, in quotes")
        first = node.args[0]
        if called in READINGS:
            name = _field(first)
            if name is None:
                _refuse(self.text, first, f"{called} takes a field")
            self._see(name, first, READINGS[called])
            return READINGS[called]
        if called in SEARCHES:
            self._need(first, TEXT)
            if not isinstance(_constant(node.args[1]), str):
                _refuse(self.text, node.args[1], f"{called} takes a text in quotes here")
            self._need(node.args[1], TEXT)
            return TRUTH
        taken, given, _ = FUNCTIONS[str(called)]
        self._need(first, taken)
        return given

    def _compare(self, node: ast.Compare) -> None:
        """Check a comparison, or several in a chain."""
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, ast.Is | ast.IsNot):
                if not _is_null(right) or len(node.ops) > 1:
                    _refuse(self.text, node, "is takes null alone: write == for others")
                self._kind(left)
            elif isinstance(operator, ast.In | ast.NotIn):
                if len(node.ops) > 1:
                    _refuse(self.text, node, "in must be in brackets beside other comparisons")
                self._among(left, right)
            else:
                self._pair(left, operator, right)
            left = right

    def _among(self, left: ast.expr, right: ast.expr) -> None:
        """Check `x in (.., ..)`."""
        if not isinstance(right, ast.Tuple | ast.List | ast.Set) or not right.elts:
            _refuse(self.text, right, "in takes numbers or texts in brackets: (404, 500), or one and a comma: (404,)")
        if any(_constant(each) is None for each in right.elts):
            _refuse(self.text, right, "in takes numbers or texts alone, no fields")
        kind = self._literal(right.elts[0])
        for each in right.elts:
            self._need(each, kind)
        self._need(left, kind)

    def _pair(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> None:
        """Check a comparison of two parts, of which one may say what the other is."""
        kinds = [self._kind(left), self._kind(right)]
        kind = kinds[0] or kinds[1]
        if kind is None:
            self.open |= {name for name in map(_field, (left, right)) if name is not None}
            return
        self._need(left, kind)
        self._need(right, kind)
        if kind == TRUTH and not isinstance(operator, ast.Eq | ast.NotEq):
            _refuse(self.text, left, "true and false are compared by == and != alone")


def _evaluate(node: ast.expr, columns: Mapping[str, pa.Array]) -> Any:
    """Return what a part of a filter that has been checked is for each event, as an Arrow array or scalar."""
    name = _field(node)
    if name is not None:
        return columns[name]
    if isinstance(node, ast.BoolOp):
        join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
        return _joined(join, (_evaluate(each, columns) for each in node.values))
    if isinstance(node, ast.Compare):
        return _joined(pc.and_kleene, _compared(node, columns))
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        return _calculated(node, columns)
    if isinstance(node, ast.Call):
        return _given(node, columns)
    value = _constant(node)
    return pa.scalar(float(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _calculated(node: ast.UnaryOp | ast.BinOp, columns: Mapping[str, pa.Array]) -> Any:
    """Return what an operator gives; what is not finite is no value."""
    if isinstance(node, ast.BinOp):
        calculate = getattr(pc, ARITHMETIC[type(node.op)])
        found = calculate(_evaluate(node.left, columns), _evaluate(node.right, columns))
        return pc.if_else(pc.is_finite(found), found, pa.scalar(None, pa.float64()))
    found = _evaluate(node.operand, columns)
    if isinstance(node.op, ast.Not):
        return pc.invert(found)
    return pc.negate(found) if isinstance(node.op, ast.USub) else found


def _joined(join: Callable[[Any, Any], Any], parts: Iterator[Any]) -> Any:
    """Join conditions one after the other."""
    found = next(parts)
    for part in parts:
        found = join(found, part)
    return found


def _compared(node: ast.Compare, columns: Mapping[str, pa.Array]) -> Iterator[Any]:
    """Give what each comparison of a chain says."""
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        value = _evaluate(left, columns)
        if isinstance(operator, ast.Is | ast.IsNot):
            yield (pc.is_null if isinstance(operator, ast.Is) else pc.is_valid)(value)
        elif isinstance(right, ast.Tuple | ast.List | ast.Set):
            among = pa.array([_evaluate(each, columns).as_py() for each in right.elts], value.type)
            if pa.types.is_floating(value.type):  # is_in tells -0.0 from 0.0, == does not
                value, among = pc.add(value, 0.0), pc.add(among, 0.0)
            found = pc.if_else(pc.is_valid(value), pc.is_in(value, among), pa.scalar(None, pa.bool_()))
            yield pc.invert(found) if isinstance(operator, ast.NotIn) else found
        else:
            yield getattr(pc, COMPARISONS[type(operator)])(value, _evaluate(right, columns))
        left = right


def _given(node: ast.Call, columns: Mapping[str, pa.Array]) -> Any:
    """Return what a function gives."""
    called, value = str(_called(node)), _evaluate(node.args[0], columns)
    if called in READINGS:
        return value
    if called in SEARCHES:
        return getattr(pc, SEARCHES[called])(value, _constant(node.args[1]))
    found = getattr(pc, FUNCTIONS[called][2])(value)
    return found.cast(pa.float64()) if called == "length" else found
