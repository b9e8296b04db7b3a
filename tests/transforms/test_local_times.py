"""Local times and times of a form: read at once as they are read one by one, by Python's own zones and strptime."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.transforms.reading.columns import EPOCH
from privstream.transforms.reading.times import check_form, parse, parse_column, zone_clock

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Monrovia", "Asia/Kathmandu",
         "Africa/Casablanca", "Pacific/Apia", "America/Sao_Paulo"]  # fmt: skip
FORMS = ["%d.%m.%Y %H:%M", "%Y%m%d%H%M%S", "%d/%b/%Y:%H:%M:%S", "%m/%d/%Y %I:%M %p", "%Y-%m-%d %H:%M:%S.%f", "%Y-%j"]


def micros(time):
    return (time.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize("zone", ZONES)
@given(st.datetimes(datetime(1970, 1, 3), datetime(2199, 12, 28)))
def test_a_local_time_is_what_python_says_and_one_in_a_skipped_hour_is_none(zone, local):
    (time,), (skipped,) = zone_clock(zone).to_utc(np.array([micros(local)]))
    there = local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)  # of two, it is the first
    back = there.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert skipped == (back != local)
    if not skipped:
        assert time == micros(there)


def read(texts, form):
    times, good = parse_column(pa.array(texts), form)
    return [time if known else None for time, known in zip(times.tolist(), good.tolist(), strict=True)]


def one_by_one(texts, form):
    found = [parse(text, form) for text in texts]
    return [None if time is None else micros(time) for time in found]


@pytest.mark.parametrize("form", FORMS)
@given(st.datetimes(datetime(1000, 1, 1)), st.integers(0, 20), st.text("0123456789 .:/x\u0661", max_size=2))
def test_text_of_a_form_is_read_at_once_as_by_strptime(form, time, place, edit):
    text = time.strftime(form)
    edited = text[:place] + edit + text[place + len(edit) :]
    texts = [text, edited, text + edit, edit + text, text[: place + 1]]
    assert read(texts, form) == one_by_one(texts, form)
    assert read([text], form) == [micros(datetime.strptime(text, form))]


TWO = "%d.%m.%Y|%d.%m.%Y %H:%M|%Y-%m-%d %H:%M"


@given(st.lists(st.tuples(st.sampled_from(TWO.split("|")), st.datetimes(datetime(1000, 1, 1))), max_size=6))
def test_texts_of_several_forms_are_each_read_by_their_own(pairs):
    texts = [*(time.strftime(form) for form, time in pairs), "24/12/2025", "31.02.2025"]
    assert read(texts, TWO) == one_by_one(texts, TWO)
    assert (
        read(texts, TWO) == [micros(datetime.strptime(time.strftime(form), form)) for form, time in pairs] + [None] * 2
    )


@pytest.mark.parametrize("forms", ["%d.%m.%y%H|%d.%m.%Y", "%d.%m.%Y|%d.%m.%y%H", "%d.%m.%Y|%d.%m.%y%H|%d.%m.%Y"])
def test_a_text_that_two_forms_read_differently_is_no_time(forms):
    texts = ["24.10.2012", "24.10.1925", "24.10.2030"]  # the first is also noon on 24 October 2020
    assert read(texts, forms) == one_by_one(texts, forms) == [
        None, *(micros(datetime(year, 10, 24)) for year in (1925, 2030))
    ]  # fmt: skip


@pytest.mark.parametrize("forms", ["%d/%m/%Y|%m/%d/%Y", "%Y-%m-%d|%d.%m.%y|%y.%m.%d", "%d.%m.%Y|%d.%m.%y%H"])
def test_forms_with_the_same_parts_in_another_order_are_refused(forms):
    with pytest.raises(ValueError, match="time_format must have forms that read no text as two times, got"):
        check_form(forms)
    with pytest.raises(ValueError, match="time_format must name a year"):
        check_form(f"{forms}|")
