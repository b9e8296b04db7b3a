"""Local times and times of a form: read at once as they are read one by one, by Python's own zones and strptime."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.transforms.reading.fields import EPOCH
from privstream.transforms.reading.times import parse, parse_column, zone_clock

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
    times, good, local = parse_column(pa.array(texts), form)
    assert (good == local).all()
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
