"""JSON lines and CSV: what one record says decides for no other, and what cannot be read to its end is named."""

import bz2
import csv
import gzip
import io
import json
import time

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from privstream.pipelines.model.public_lists import Reading, queries, ranges, rules
from privstream.pipelines.sources import csv_events, files, text_lines
from privstream.pipelines.sources.formats import InputFileError

HONEST = [{"user": f"u{number}", "item": "rain", "time": f"2024-01-01T00:{number % 60:02}:00"} for number in range(90)]
COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstandard.compress}


def json_text(events):
    return "".join(json.dumps(event) + "\n" for event in events)


def csv_text(events):
    return "user,item,time\n" + "".join(",".join(event.values()) + "\n" for event in events)


TEXTS = {"jsonl": json_text, "csv": csv_text}


@pytest.mark.parametrize(("beyond", "place"), [(1, 0), (200, 45), (5000, 90)])
def test_a_line_that_is_too_long_is_one_dead_letter(beyond, place, tmp_path, monkeypatch, read_all):
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(files, "BLOCK_BYTES", 300)
    lines = json_text(HONEST).splitlines(keepends=True)
    lines.insert(place, '{"user": "v", "item": "%s", "time": "2024-01-01"}' % ("x" * (1000 + beyond)) + "\n")
    (tmp_path / "a.jsonl").write_text("".join(lines))
    rows, letters = read_all(tmp_path / "a.jsonl")
    assert [row["user"] for row in rows] == [event["user"] for event in HONEST]
    (letter,) = letters
    assert letter.reason == "line must be at most 1000 bytes"
    assert letter.position == f"line {place + 1}"
    assert len(letter.record) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("unit", [None, "s"])
@pytest.mark.parametrize("format", TEXTS)
def test_a_long_row_of_digits_as_a_time_takes_no_longer_than_its_length(format, unit, tmp_path, read_all):
    path = tmp_path / f"events.{format}"
    for start in ("", "1.", "1e", "2024-01-01T00:00:00."):
        path.write_text(TEXTS[format]([*HONEST, {"user": "v", "item": "rain", "time": start + "1" * 40_000 + "x"}]))
        began = time.process_time()
        found = read_all(path, time_unit=unit)
        assert time.process_time() - began < 5, f"each digit after {start!r} is tried again for each digit"
        assert len(found.rows) == len(HONEST)
        assert len(found.letters) == 1


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("format", TEXTS)
def test_text_may_be_compressed_in_several_pieces(format, ending, tmp_path, read_all):
    text, path = TEXTS[format](HONEST).encode(), tmp_path / f"a.{format}.{ending}"
    path.write_bytes(COMPRESS[ending](text[:700]) + COMPRESS[ending](text[700:]) + COMPRESS[ending](b""))
    rows, letters = read_all(path)
    assert ([row["user"] for row in rows], letters) == ([event["user"] for event in HONEST], [])


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_text_that_ends_early_or_is_damaged_is_named(ending, tmp_path, read_all):
    packed, path = COMPRESS[ending](json_text(HONEST).encode()), tmp_path / f"a.jsonl.{ending}"
    cuts = [packed[:length] for length in (0, 1, 5, len(packed) // 2, len(packed) - 1)]
    for content in [*cuts, packed + b"garbage", packed + packed[:9], b"this was never compressed"]:
        path.write_bytes(content)
        with pytest.raises(InputFileError, match=r"a\.jsonl\.\w+ cannot be read to its end: it ends early, or"):
            read_all(path)


NASTY = [
    "null",
    "NaN",
    "1" * 5000,
    '{"user":"v","item":' + "9" * 5000 + ',"time":"2024-01-01"}',
    '{"user":"\\ud800","item":"a","time":"\\udfff"}',
    '{"user":' + "[" * 3000 + "]" * 3000 + "}",
    "[" * 100_000,
    '{"user":"v"},{"user":"w"}',
    '{"user":"v","item":["a"',
    "\ufeff{}",
    "\x00",
    "\x0c",
]


@pytest.mark.parametrize("line", NASTY)
def test_hostile_lines_in_files_of_queries_and_rules_are_worded(line, tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    for name, read in (("queries", ranges), ("queries", queries), ("rules", rules)):
        with pytest.raises(ValueError, match=rf"--{name}, line 1 of |--{name} must have at least one line"):
            read(name, str(path), Reading())


TIME = "2024-01-01T00:00:00Z"
HEADER = "user,item,time\n"
BLOCKS = [3, 16, 1 << 20]
SHAPES = ["{0},rain,{1}\n", '"{0}","ra""in","{1}"\n', '{0},"ra\nin",{1}\n', '{0},"r,a\n\nin",{1}\r\n']
"""Records of honest people."""


def write(path, text):
    path.write_text(HEADER + text, encoding="utf-8", newline="")


def written(*rows, end="\n", quoting=csv.QUOTE_MINIMAL):
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=quoting).writerows(rows)
    return text.getvalue()


@pytest.fixture(params=BLOCKS)
def blocks(request, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", request.param)


BARE = [f"v,{item},{TIME}" for item in ("a\rb", "\r", '"a"\rb')]


@pytest.mark.parametrize("line", ['5" screen', 'v,"i"x', 'v,i"",1,2', 'v,"i,j"', "v", *BARE])
def test_a_line_of_another_shape_or_with_a_bare_carriage_return_costs_only_itself(line, tmp_path, blocks, read_all):
    honest = "".join(SHAPES[number % 4].format(f"u{number}", TIME) for number in range(20))
    write(tmp_path / "a.csv", honest + line + "\n" + honest)
    rows, letters = read_all(tmp_path / "a.csv")
    assert [row["user"] for row in rows] == [f"u{number}" for number in range(20)] * 2
    (letter,) = letters
    rule = "record must have a line feed behind each carriage return" if line in BARE else "line must be one CSV record"
    assert letter.reason.startswith(rule) and letter.record == line
    assert letter.position == f"line {HEADER.count(chr(10)) + honest.count(chr(10)) + 1}"


@pytest.mark.parametrize("limit", [1 << 26, 200])
@pytest.mark.parametrize("line", ['v,"i,1', f'v,i,"{TIME}', '"', '"""'])
def test_a_quote_that_nobody_closes_is_named_with_its_line(line, limit, tmp_path, blocks, monkeypatch, read_all):
    monkeypatch.setattr(csv_events, "MAX_RECORD_BYTES", limit)
    write(tmp_path / "a.csv", f"u,rain,{TIME}\n" * 9 + line + "\n" + f"u,rain,{TIME}\n" * 9)
    with pytest.raises(InputFileError, match=r"a\.csv .* line 11 is not closed; --quote none"):
        read_all(tmp_path / "a.csv")
    rows, letters = read_all(tmp_path / "a.csv", quote="none")
    assert len(rows) + len(letters) == 19


def test_a_quote_that_makes_a_wrong_record_of_several_is_refused(tmp_path, blocks, read_all):
    write(tmp_path / "a.csv", f'u,rain,{TIME}\nv,i,"1\nu,rain,{TIME}\nu,"rain",{TIME}\nu,,rain,{TIME}\n')
    with pytest.raises(InputFileError, match=r"a\.csv cannot be read: line 3 must have quotes around fields"):
        read_all(tmp_path / "a.csv")


@pytest.mark.parametrize("field", ["", '","'])
@pytest.mark.parametrize("start", ["x" * 300, '"' + "x" * 300, '"' + "x\n" * 150, '"' + '""' * 150])
def test_a_record_that_is_too_long_forges_no_other(start, field, tmp_path, blocks, monkeypatch, read_all):
    monkeypatch.setattr(csv_events, "MAX_RECORD_BYTES", 200)
    honest = f"u,rain,{TIME}\n" * 20
    forged = "".join(f"z{number},AD,{TIME}\n" for number in range(50))
    record = start + ('",' if start[0] == '"' else ",") + f'"{field}\n{forged}",{TIME}\n'
    write(tmp_path / "a.csv", honest + record + honest)
    try:
        rows, letters = read_all(tmp_path / "a.csv")
    except InputFileError as error:
        assert "line 22" in str(error)
    else:
        assert [row["user"] for row in rows if row["user"][:1] not in 'x"'] == ["u"] * 40
        assert len(rows) + len(letters) == 41


def test_a_long_record_without_a_quote_is_not_said_to_have_one(tmp_path, blocks, monkeypatch, read_all):
    monkeypatch.setattr(csv_events, "MAX_RECORD_BYTES", 200)
    write(tmp_path / "a.csv", f"{'x' * (3 << 20)},rain,{TIME}\n")
    with pytest.raises(InputFileError, match=r"that on line 2 is not$"):
        read_all(tmp_path / "a.csv")


PARTS = st.sampled_from(["a", '"', ",", "\n", "\r\n", " ", "é", "\ufeff", "\x00", "1"])
FIELDS = st.lists(PARTS, min_size=1, max_size=6).map("".join)


@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    block=st.sampled_from(BLOCKS),
)
def test_what_a_csv_writer_writes_is_read(rows, end, quoting, block, tmp_path_factory, read_all):
    path = tmp_path_factory.getbasetemp() / "round.csv"
    write(path, written(*[(*row, TIME) for row in rows], end=end, quoting=quoting))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", block)
        found, letters = read_all(path)
    assert [(row["user"], row["item"]) for row in found] == rows
    assert letters == []


CSV_HONEST = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=9)
SIGNS = st.sampled_from(["a", ' "', ",", "v", "\r", 'i"', "\x00", " ", "x" * 50])
ITEMS = st.lists(st.sampled_from(["\n", "\r", "z,AD,2024\n", '"', ",", "\r\n", "b"]), max_size=12).map("".join)


@given(
    shapes=CSV_HONEST,
    hostile=st.one_of(
        st.lists(SIGNS, min_size=1, max_size=8).map("".join).filter(lambda text: ',"' not in text),
        ITEMS.map(lambda item: written(["v", item, TIME], quoting=csv.QUOTE_ALL, end="")),
    ),
    place=st.integers(0, 9),
)
def test_any_record_leaves_the_others_as_they_are(shapes, hostile, place, tmp_path_factory, read_all):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    records = [shape.format(f"u{number}", TIME) for number, shape in enumerate(shapes)]
    records.insert(place, hostile + "\n")
    write(path, "".join(records))
    for block in BLOCKS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "BLOCK_BYTES", block)
            rows, letters = read_all(path)
        users = [row["user"] for row in rows if row["user"][:1] == "u"]
        assert users == [f"u{number}" for number in range(len(shapes))]
        assert len(rows) + len(letters) <= len(shapes) + 1
