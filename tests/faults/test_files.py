"""Files that real use brought (F1 to F4, F9 to F11, F13, F15, E7, P3): what is right."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import os
import re
import subprocess
import sys
import uuid
import zipfile
from datetime import date, datetime
from decimal import Decimal

import fastavro
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.pipelines.sources import xlsx_events
from pyarrow.parquet import encryption

TIME = "2026-03-02T10:00:00Z"


def lines(items, head="user,item,time", time=TIME):
    return "\n".join([head, *(f"u{number},{item},{time}" for number, item in enumerate(items))]) + "\n"


@pytest.mark.parametrize(
    ("listed", "options"),
    [
        (b"\xef\xbb\xbfrain\nsnow\n", ()),
        (b" rain \n\tsnow\n", ("--trim",)),
        ("rain\nsnow\n".encode("utf-16"), ("--encoding", "utf-16")),
        (b"RAIN\nSnow\n", ("--fold_case",)),
    ],
)
def test_f1_public_lists_are_read_as_the_input_is(listed, options, tmp_path, run):
    encoding = options[1] if options[:1] == ("--encoding",) else "utf-8"
    (tmp_path / "a.csv").write_text(lines(["rain"] * 20), encoding=encoding)
    assert run("--input", "a.csv", *options, items=listed).counts() == {"rain": 20, "snow": 0}


def test_f1_a_list_with_a_mark_of_its_own_encoding_is_read_by_it_or_refused(tmp_path, run):
    (tmp_path / "a.csv").write_text(lines(["Öl"] * 20), encoding="windows-1252")
    given = ("--input", "a.csv", "--encoding", "windows-1252")
    assert run(*given, items="Öl\nTee\n".encode("utf-8-sig")).counts() == {"Öl": 20, "Tee": 0}
    (tmp_path / "a.csv").write_text(lines(["rain"] * 20), encoding="utf-16")
    found = run("--input", "a.csv", "--encoding", "utf-16", items=b"rain\nsnow\n")
    assert found.status == 2 and "--domain must be a file of UTF-16 text" in found.said


def test_f1_public_items_and_items_of_rules_are_read_as_the_input_is(tmp_path, run):
    (tmp_path / "a.csv").write_text(lines(["rain"] * 20))
    (tmp_path / "beside.txt").write_bytes(b"\xef\xbb\xbf rain\nSNOW \n")
    given = ("--input", "a.csv", "--delta", "1e-6", "--trim", "--fold_case")
    assert run(*given, "--public_items", "beside.txt").counts() == {"rain": 20, "snow": 0}
    (tmp_path / "rules").write_bytes(b'\xef\xbb\xbf{"name": "r", "at_least": 10, "items": ["RAIN "]}\n')
    given = (*given, "--rules", "rules", "--max_contributions", "1", "--output", "rows.csv", "--overwrite")
    found = run(*given, command="alerts")
    assert [(row["rule"], float(row["estimate"])) for row in found.rows] == [("r", 20)]


def test_an_item_that_no_event_can_have_is_in_no_list(tmp_path, run):
    (tmp_path / "a.csv").write_text(lines(["rain"] * 20))
    found = run("--input", "a.csv", items=["rain", "é" * 8193])
    assert found.status == 2 and "--domain must hold items of at most 16,384 bytes" in found.said


@pytest.mark.parametrize("name", ["report[1].csv", "a*.csv", "what?.csv", "[x].csv"])
def test_f2_a_path_that_exists_is_that_file(name, tmp_path, run):
    (tmp_path / name).write_text(lines(["rain"] * 20))
    for other in ("report1.csv", "ab.csv", "what1.csv", "x.csv"):
        (tmp_path / other).write_text(lines(["snow"] * 7))
    assert run("--input", name, items=["rain", "snow"]).counts() == {"rain": 20, "snow": 0}


def test_f3_a_quote_that_makes_one_record_of_many_is_said_and_can_be_text(tmp_path, run):
    (tmp_path / "a.csv").write_text(lines(['"12', *["rain"] * 300, '12"', *["rain"] * 9]))
    found = run("--input", "a.csv", items=["rain", '"12'])
    assert found.counts()["rain"] == 9
    assert "--quote none" in found.said
    assert "u1,rain" not in found.said
    found = run("--input", "a.csv", "--quote", "none", items=["rain", '"12'])
    assert found.counts() == {"rain": 309, '"12': 1} and "--quote none" not in found.said


def test_f3_no_text_forges_records_of_others(tmp_path, run):
    forged = "".join(f"x{number},rain,{TIME}\n" for number in range(1500))
    (tmp_path / "a.csv").write_text(lines(["rain", f'"\n{forged}"', "rain"]))
    assert run("--input", "a.csv", items=["rain"]).counts() == {"rain": 2}


@pytest.mark.parametrize("text", ['12" single', 'the "best" of', 'x"', '"best" of', '5" and 6"', 'a ""b""'])
def test_f4_quotes_within_an_unquoted_field_are_text(text, tmp_path, run):
    rows = [f'u{number},rain,{TIME},{text},"a ""quoted"" one, really"' for number in range(72)]
    (tmp_path / "a.csv").write_text("\n".join(["user,item,time,prose,more", *rows]))
    found = run("--input", "a.csv", items=["rain"])
    assert found.counts() == {"rain": 72} and "72 of 72" in found.said


def parquet(path, **columns):
    number = len(next(iter(columns.values())))
    standard = {"user": [f"u{row}" for row in range(number)], "item": ["rain"] * number, "time": [TIME] * number}
    pq.write_table(pa.table(standard | columns), path)


IDS = [uuid.UUID(int=7).bytes] * 20
KINDS = {
    "day": (pa.array([date(2026, 3, 2)] * 20), "2026-03-02"),
    "whole number": (pa.array([Decimal(10**30)] * 20, pa.decimal128(38, 0)), "1" + "0" * 30),
    "uuid": (pa.array(IDS, pa.uuid()), str(uuid.UUID(int=7))),
    "truth": (pa.array([True] * 20), "true"),
    "dictionary of numbers": (pa.array([5] * 20).dictionary_encode(), "5"),
    "dictionary of texts": (pa.array(["x"] * 20).dictionary_encode(), "x"),
    "small number": (pa.array([5] * 20, pa.uint8()), "5"),
    "bytes": (pa.array([b"x"] * 20, pa.large_binary()), "x"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_f9_columns_of_parquet_are_read_as_what_they_say(kind, tmp_path, run):
    column, text = KINDS[kind]
    parquet(tmp_path / "a.parquet", item=column)
    assert run("--input", "a.parquet", items=[text]).counts() == {text: 20}
    parquet(tmp_path / "a.parquet", user=column)
    assert run("--input", "a.parquet", items=["rain"]).counts() == {"rain": 1}


@pytest.mark.parametrize("unit", ["date", "decimal"])
def test_f9_days_and_decimals_are_times(unit, tmp_path, run):
    column = pa.array([date(2026, 3, 2)] * 20 + [date(9999, 1, 1)])
    options = ["--time_zone", "Europe/Berlin"]
    if unit == "decimal":
        column, options = pa.array([Decimal(1772445600)] * 20 + [Decimal(10**20)], pa.decimal128(38, 0)), []
        options = ["--time_unit", "s"]
    parquet(tmp_path / "a.parquet", time=column)
    day = ["--start", "2026-03-02", "--end", "2026-03-03"]
    assert run("--input", "a.parquet", *options, *day, items=["rain"], day="").counts() == {"rain": 20}


def test_f9_logical_types_of_avro_are_read_likewise(tmp_path, run):
    kinds = {
        "day": ({"type": "int", "logicalType": "date"}, date(2026, 3, 2), "2026-03-02"),
        "whole": ({"type": "bytes", "logicalType": "decimal", "precision": 38}, Decimal(10**30), "1" + "0" * 30),
        "uuid": ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), str(uuid.UUID(int=7))),
        "truth": ("boolean", True, "true"),
    }
    for kind, (item, value, text) in kinds.items():
        fields = [
            {"name": "user", "type": "string"},
            {"name": "item", "type": item},
            {"name": "time", "type": "string"},
        ]
        with (tmp_path / f"{kind}.avro").open("wb") as stream:
            rows = [{"user": f"u{number}", "item": value, "time": TIME} for number in range(20)]
            fastavro.writer(stream, {"type": "record", "name": "event", "fields": fields}, rows)
        assert run("--input", f"{kind}.avro", items=[text]).counts() == {text: 20}


@pytest.mark.parametrize("end", ["\r", "\r\r\n"])
def test_f10_a_header_with_a_bare_carriage_return_names_it(end, tmp_path, run):
    (tmp_path / "a.csv").write_text(lines(["rain"] * 20), newline=end) if end == "\r" else (
        tmp_path / "a.csv"
    ).write_bytes(lines(["rain"] * 20).replace("\n", end).encode())
    found = run("--input", "a.csv", items=["rain"])
    assert found.status == 2 and "carriage return" in found.said and "encoding" not in found.said


def test_f10_a_line_break_within_a_quoted_name_is_part_of_it(tmp_path, run):
    (tmp_path / "a.csv").write_text(lines(["rain"] * 20, head='"the\nuser",item,"time\r\n(UTC)"'))
    found = run("--input", "a.csv", "--user", "the\nuser", "--time", "time\r\n(UTC)", items=["rain"])
    assert found.counts() == {"rain": 20} and "20 of 20" in found.said


def test_f11_names_that_look_the_same_can_be_one(tmp_path, run):
    items = ["Milk", "MILK", "Caf\u00e9", "Cafe\u0301", "tea"]
    (tmp_path / "a.csv").write_text(lines(items * 20), encoding="utf-8")
    found = run("--input", "a.csv", items=items)
    assert found.counts() == dict.fromkeys(items, 20)
    found = run("--input", "a.csv", "--fold_case", "--normalize", items=items)
    assert found.counts() == {"milk": 40, "caf\u00e9": 40, "tea": 20}


def test_f13_a_closed_standard_output_is_no_failure(tmp_path, run):
    (tmp_path / "a.csv").write_text(lines(["rain"] * 20))
    (tmp_path / "public.txt").write_text("rain\n")
    program = "'from privstream.pipelines.cli import main; raise SystemExit(main())'"
    given = "counts --input a.csv --domain public.txt --epsilon 1 --window 1day --start 2026-03-02 --end 2026-03-03"
    call = [sys.executable, "-c", program, *given.split(), "--ledger", "l.jsonl"]
    call = [*call, "--key", "noise.key", "--max_contributions", "1"]
    for shell in (">&-", "| true"):
        text = f"set -o pipefail; {' '.join(call)} {shell}"
        ended = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
        assert ended.returncode == 0 and "Traceback" not in ended.stderr and "20 of 20" in ended.stderr
        text = f"set -o pipefail; {' '.join(call[:3])} budget show --ledger l.jsonl {shell}"
        ended = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_f15_the_rule_that_was_broken_is_named(tmp_path, run):
    (tmp_path / "a.csv").write_text(lines(["rain"] * 20))
    found = run("--input", "a.csv", "--encoding", "iso2022_jp", items=["rain"])
    assert found.status == 2 and "records stand alone" in found.said
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(lines(["rain"] * 20).encode()) + bytes(512))
    (tmp_path / "b.csv").write_bytes((tmp_path / "b.csv.gz").read_bytes())
    assert "end its name in .gz" in run("--input", "b.csv", items=["rain"]).said
    assert run("--input", "b.csv.gz", items=["rain"]).counts() == {"rain": 20}
    (tmp_path / "c.tsv").write_text(lines(["rain"] * 20).replace(",", "\t"))
    assert run("--input", "c.tsv", items=["rain"]).counts() == {"rain": 20}


def test_e7_a_workbook_is_read(tmp_path, run):
    book = openpyxl.Workbook()
    for row in [("user", "item", "time"), *((number, "rain", datetime(2026, 3, 2, 10)) for number in range(20))]:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert run("--input", "a.xlsx", "--time_zone", "UTC", items=["rain"]).counts() == {"rain": 20}


@pytest.mark.parametrize("plain", [True, False])
def test_p3_an_encrypted_parquet_file_is_named_and_nothing_is_charged(plain, tmp_path, run):
    class Keys(encryption.KmsClient):
        def __init__(self, connection):
            super().__init__()

        def wrap_key(self, key, name):
            return base64.b64encode(key)

        def unwrap_key(self, key, name):
            return base64.b64decode(key)

    factory, names = encryption.CryptoFactory(Keys), {"columns": ["user"]}
    how = encryption.EncryptionConfiguration(footer_key="footer", column_keys=names, plaintext_footer=plain)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    table = pa.table({"user": ["u"] * 20, "item": ["rain"] * 20, "time": [TIME] * 20})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    found = run("--input", "a.parquet", "--ledger", "spent.jsonl", items=["rain"])
    assert found.status == 2 and "is encrypted" in found.said and not os.path.exists("spent.jsonl")


def test_p3_a_codec_of_avro_that_is_not_read_is_named_and_nothing_is_charged(tmp_path, run):
    fields = [{"name": name, "type": "string"} for name in ("user", "item", "time")]
    with (tmp_path / "a.avro").open("wb") as stream:
        rows = [{"user": "u", "item": "rain", "time": TIME}] * 20
        fastavro.writer(stream, {"type": "record", "name": "event", "fields": fields}, rows, codec="xz")
    found = run("--input", "a.avro", "--ledger", "spent.jsonl", items=["rain"])
    assert found.status == 2 and "codec xz" in found.said and not os.path.exists("spent.jsonl")


def with_a_bad_cell(data):
    book, made = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        for name in book.namelist():
            bad = re.sub(
                rb'"inlineStr"><is><t>[^<]*</t></is>(</c></row></sheetData>)', rb'"n"><v>x</v>\1', book.read(name)
            )
            packed.writestr(name, bad)
    return made.getvalue()


DAMAGE = {
    "a.csv.gz": lambda data: data[:-3],
    "b.csv.gz": lambda data: data[: len(data) // 2] + bytes(9) + data[len(data) // 2 + 9 :],
    "a.jsonl.bz2": lambda data: data[: len(data) // 2],
    "a.avro": lambda data: data[:-40],
    "b.avro": lambda data: data[:-900] + bytes(20) + data[-880:],
    "a.parquet": lambda data: data[:-100],
    "b.parquet": lambda data: data[:4] + b"\xff" * 400 + data[404:],
    "a.xlsx": lambda data: data[: len(data) // 2],
    "c.xlsx": with_a_bad_cell,
    "b.xlsx": lambda data: data.replace(b"xl/worksheets", b"xl/worksheetz", 1),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_is_cut_short_or_damaged_is_refused_whole_and_nothing_is_charged(name, tmp_path, run, monkeypatch):
    rows, path = [{"user": f"u{row}", "item": f"i{row**3}", "time": TIME} for row in range(900)], tmp_path / name
    monkeypatch.setattr(xlsx_events, "ROWS", 100)
    if ".csv" in name:
        text = lines([row["item"] for row in rows]).encode()
        path.write_bytes(gzip.compress(text))
    elif ".jsonl" in name:
        path.write_bytes(bz2.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    elif ".avro" in name:
        fields = [{"name": key, "type": "string"} for key in rows[0]]
        with path.open("wb") as stream:
            schema = {"type": "record", "name": "event", "fields": fields}
            fastavro.writer(stream, schema, rows, codec="deflate", sync_interval=4000)
    elif ".parquet" in name:
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        book = openpyxl.Workbook()
        for row in [list(rows[0]), *(list(row.values()) for row in rows)]:
            book.active.append(row)
        book.save(path)
    path.write_bytes(DAMAGE[name](path.read_bytes()))
    found = run("--input", name, "--ledger", "spent.jsonl", items=["rain"])
    assert found.status == 2 and name in found.said and "Traceback" not in found.said
    assert not found.rows and not os.path.exists("spent.jsonl")
