"""CSV by RFC 4180: line breaks in quotes, quotes that nobody closes, and that neither costs other records."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.pipelines.sources import text_lines

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
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", request.param)


def test_an_item_with_line_breaks_is_one_record(tmp_path, blocks, read_all):
    item = "\n" + "".join(f"x{number},AD,{TIME}\n" for number in range(50))
    write(tmp_path / "a.csv", written(["u", "rain", TIME], ["v", item, TIME], ["w", "rain", TIME]))
    rows, letters = read_all(tmp_path / "a.csv")
    assert [(row["user"], row["item"]) for row in rows] == [("u", "rain"), ("v", item), ("w", "rain")]
    assert letters == []


@pytest.mark.parametrize("limit", [1 << 24, 200])
@pytest.mark.parametrize(
    "line", ['v,"i,1', f'v,i,"{TIME}', '"', '"""', '5" screen', f'v"x",i,{TIME}', f'v,"i"x,{TIME}']
)
def test_a_wrong_quote_costs_only_its_own_line(line, limit, tmp_path, blocks, monkeypatch, read_all):
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", limit)
    honest = "".join(SHAPES[number % 4].format(f"u{number}", TIME) for number in range(20))
    write(tmp_path / "a.csv", honest + line + "\n" + honest)
    rows, letters = read_all(tmp_path / "a.csv")
    assert [row["user"] for row in rows] == [f"u{number}" for number in range(20)] * 2
    (letter,) = letters
    assert (letter.reason, letter.record) == ("line must be one CSV record with 3 fields", line)
    assert letter.position == f"line {HEADER.count(chr(10)) + honest.count(chr(10)) + 1}"


@pytest.mark.parametrize("item", ["a\rb", '"a\rb"', '"a\n\r\nb\r"', '"\r"'])
def test_a_bare_carriage_return_costs_only_its_record(item, tmp_path, blocks, read_all):
    honest = "".join(SHAPES[number % 4].format(f"u{number}", TIME) for number in range(20))
    write(tmp_path / "a.csv", honest + f"v,{item},{TIME}\n" + honest)
    rows, letters = read_all(tmp_path / "a.csv")
    assert [row["user"] for row in rows] == [f"u{number}" for number in range(20)] * 2
    assert [letter.reason for letter in letters] == ["record must have a line feed behind each carriage return"]


@pytest.mark.parametrize("limit", [1 << 24, 300])
def test_a_record_of_many_lines_is_one_dead_letter_if_it_is_wrong_or_too_long(
    limit, tmp_path, blocks, monkeypatch, read_all
):
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", limit)
    honest = "".join(SHAPES[number % 4].format(f"u{number}", TIME) for number in range(20))
    item = "\r" + "".join(f"x{number},AD,{TIME}\n" for number in range(50))
    write(tmp_path / "a.csv", honest + written(["v", item, TIME]) + honest)
    rows, letters = read_all(tmp_path / "a.csv")
    assert [row["user"] for row in rows] == [f"u{number}" for number in range(20)] * 2
    (letter,) = letters
    rule = "have a line feed behind each carriage return" if limit > 300 else "be at most 300 bytes"
    assert letter.reason == f"record must {rule}"
    assert letter.position == f"line {honest.count(chr(10)) + 2}"


def test_a_record_that_begins_with_a_byte_order_mark_keeps_it(tmp_path, blocks, read_all):
    write(tmp_path / "a.csv", f"\ufeffu,rain,{TIME}\n" * 9)
    assert [row["user"] for row in read_all(tmp_path / "a.csv").rows] == ["\ufeffu"] * 9


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
        patch.setattr(text_lines, "BLOCK_BYTES", block)
        found, letters = read_all(path)
    assert [(row["user"], row["item"]) for row in found] == rows
    assert letters == []


HONEST = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=9)
SIGNS = st.sampled_from(['"', '"', ",", "v", "\r", 'i"', "\x00", " ", "x" * 50])
ITEMS = st.lists(st.sampled_from(["\n", "\r", "z,AD,2024\n", '"', ",", "\r\n", "b"]), max_size=12).map("".join)


@given(
    shapes=HONEST,
    hostile=st.one_of(
        st.lists(SIGNS, min_size=1, max_size=8).map("".join),
        ITEMS.map(lambda item: written(["v", item, TIME], quoting=csv.QUOTE_ALL, end="")),
    ),
    place=st.integers(0, 9),
    limit=st.sampled_from([60, 1 << 24]),
)
def test_any_record_leaves_the_others_as_they_are(shapes, hostile, place, limit, tmp_path_factory, read_all):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    records = [shape.format(f"u{number}", TIME) for number, shape in enumerate(shapes)]
    records.insert(place, hostile + "\n")
    write(path, "".join(records))
    outcomes = []
    for block in BLOCKS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_lines, "BLOCK_BYTES", block)
            patch.setattr(text_lines, "MAX_LINE_BYTES", limit)
            rows, letters = read_all(path)
        outcomes.append((rows, sorted(letters)))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    rows, letters = outcomes[0]
    assert [row["user"] for row in rows if row["user"][:1] == "u"] == [f"u{number}" for number in range(len(shapes))]
    assert len(rows) + len(letters) <= len(shapes) + 1
