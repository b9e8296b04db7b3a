"""Collections whose elements cannot be events are refused when the pipeline is built; what is not known is not."""

import datetime
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from examples import ONE_OF_EACH, example, with_inputs
from privstream.transforms import LinearQuery, Measurement, PredecessorQuery, RangeQuery
from privstream.transforms.events.element_types import check_events, check_rows
from privstream.transforms.events.event_fields import UNREAD, EventFields

FORMS = "event must be a pair (user, item), a row or an Arrow record batch, got"
FIELDS = "needed are user, item, time, got"


class Click(NamedTuple):
    user: str
    item: int | None
    time: Timestamp


class Named(NamedTuple):
    who: str
    item: str
    time: Timestamp


class Unsure(NamedTuple):
    user: "Somebody"  # noqa: F821
    item: str
    time: Any


@dataclass
class Visit:
    user: str
    item: str
    when: float


def of(elements, hint=None):
    """Return a collection of elements, of a type that is given or found."""
    found = beam.Pipeline() | beam.Create(elements)
    return found if hint is None else found | beam.Map(lambda each: each).with_output_types(hint)


@pytest.mark.parametrize(
    ("elements", "hint", "reason"),
    [
        ([{"user": "u"}], None, f"{FORMS} Dict[str, str]"),
        (["text"], None, f"{FORMS} str"),
        ([b"text"], None, f"{FORMS} bytes"),
        ([5], None, f"{FORMS} int"),
        ([None], None, f"{FORMS} NoneType"),
        (["text", 5], None, f"{FORMS} "),
        ([("u", "i", 5)], None, f"{FORMS} Tuple[str, str, int]"),
        ([("u",)], None, f"{FORMS} Tuple[str]"),
        ([{"u"}], None, f"{FORMS} Set[str]"),
        ([("u", None)], None, "item must be text or an integer, got NoneType"),
        ([("u", 1.5)], None, "item must be text or an integer, got float"),
        ([("u", ["i"])], None, "item must be text or an integer, got List[str]"),
        ([], tuple[str, beam.typehints.Iterable[str]], "item must be text or an integer, got Iterable[str]"),
        ([Named("w", "i", Timestamp(1))], Named, f"row must have a field user; {FIELDS} who, item, time"),
        ([Visit("u", "i", 1.0)], Visit, f"row must have a field time; {FIELDS} user, item, when"),
        ([beam.Row(user="u", item="i")], None, f"row must have a field time; {FIELDS} user, item"),
        (
            [beam.Row(user="u", item="i", time="2024-01-01")],
            None,
            "time must be a timestamp or a number of seconds since 1970, got str",
        ),
        ([beam.Row(user=1.5, item="i", time=1)], None, "user must be text or an integer, got float"),
    ],
)
def test_types_that_cannot_work_are_refused(elements, hint, reason):
    with pytest.raises(TypeError) as refused:
        check_events(of(elements, hint), EventFields())
    assert str(refused.value).startswith(f"events cannot be used: {reason}")


@pytest.mark.parametrize(
    ("elements", "hint"),
    [
        ([("u", "i")], None),
        ([("u", 5), {"other": "u"}], None),
        ([["u", "i"]], None),
        ([], tuple[str, ...]),
        ([], Any),
        ([], object),
        ([], tuple[Any, Any]),
        ([Click("u", 1, Timestamp(1))], Click),
        ([], Unsure),
        ([pa.record_batch({"user": ["u"]})], None),
        *[
            ([beam.Row(user="u", item="i", time=t)], None)
            for t in (1, 1.5, Timestamp(1), datetime.datetime(2024, 1, 1))
        ],
    ],
)
def test_types_that_may_work_are_taken(elements, hint):
    check_events(of(elements, hint), EventFields())


def test_what_is_asked_for_decides():
    pairs, rows = of([("u", ["i"])]), of([beam.Row(item="i", time=1)])
    check_events(pairs, EventFields(lists=True))
    check_events(rows, EventFields(user=UNREAD))
    with pytest.raises(TypeError, match="row must have a field user"):
        check_events(rows, EventFields())
    streams = EventFields(streams=True)
    with pytest.raises(TypeError, match="with a field stream: streams are asked for"):
        check_events(of([("u", "i")]), streams)
    with pytest.raises(TypeError, match="row must have a field stream; needed are user, item, time, stream"):
        check_events(of([Click("u", 1, Timestamp(1))], Click), streams)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_transform_refuses_them(name):
    made = example(name)
    pipeline, given = with_inputs(made)
    for number, element in enumerate(["text", {"user": "u"}, ("a", "b", "c"), beam.Row(somebody="u")]):
        wrong = pipeline | f"Wrong {number}" >> beam.Create([element])
        for place in given if isinstance(given, dict) else [None]:
            inputs = wrong if place is None else given | {place: wrong}
            with pytest.raises(TypeError, match=r"^(events|queries|measurements) cannot be used: "):
                _ = inputs | f"{place} {number}" >> made


@pytest.mark.parametrize("kind", [LinearQuery, RangeQuery, PredecessorQuery, Measurement])
def test_rows_of_queries_need_their_fields(kind):
    required = kind._fields[: kind._fields.index("time") + 1]
    check_rows("queries", of([], kind), required)
    check_rows("queries", of([], Any), required)
    with pytest.raises(TypeError, match=r"^queries cannot be used: row must have a field"):
        check_rows("queries", of([], Click), required if kind is not Measurement else ("rule",))
    with pytest.raises(TypeError, match=r"they must be rows with fields .*, got str$"):
        check_rows("queries", of(["text"]), required)
