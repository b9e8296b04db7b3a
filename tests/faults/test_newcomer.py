"""What somebody who tries it for the first time meets: each sentence is true, and each line works."""

import json
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from privstream.pipelines import cli

START = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp())
RUN = "--window 1day --start 2030-01-01 --end 2030-01-11 --ledger none"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)
    return tmp_path


def write(has, name="e.csv"):
    """Write a number of contributions per person, each of another item."""
    rng = np.random.default_rng(1)
    rows = [
        f"u{u},i{k},{START + 60 + int(rng.integers(10)) * 86_400},{1 + k % 90}"
        for u, n in enumerate(has)
        for k in range(n)
    ]
    Path(name).write_text("\n".join(["user,item,time,value", *rows]))


def call(line, capsys, status=0):
    assert cli.main(shlex.split(line)) == status
    return capsys.readouterr()


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_what_suggest_says_a_limit_keeps_holds_where_noise_hides_people(folder, capsys, seed):
    rng = np.random.default_rng(seed)
    has = rng.geometric(1 / 14, 4_000)
    has[:40] = rng.integers(300, 901, 40)
    write(has)
    asked = f"--input e.csv --time_unit s --key key {RUN} --run_id {seed}"
    said = call(f"suggest {asked} --output limits.jsonl --overwrite", capsys).out
    rows = [json.loads(line) for line in Path("limits.jsonl").read_text().splitlines()]
    held = [
        row["kept_lower"] <= np.minimum(has, row["limit"]).sum() / has.sum() <= row["kept_upper"] for row in rows[:-1]
    ]
    people = [
        row["people_lower"] <= np.sum((has > row["above"]) & (has <= (row["limit"] or 1e9))) <= row["people_upper"]
        for row in rows
    ]
    assert all(held) and np.mean(people) >= 0.7
    assert "not known" in said and not re.search(r"keeps \d+%", said)


def test_a_header_in_another_encoding_is_said_to_be_one(folder, capsys):
    line = f"counts --input g.csv --user a --item b --time c --epsilon 1 --delta 1e-6 --output c.jsonl {RUN}"
    for header in (b"a;Gr\xf6\xdfe\r\n", b"a;Preis \x80\r\n", b"a;Gr\xf6\xdfe\n"):
        Path("g.csv").write_bytes(header + b"1;2\r\n")
        said = call(line, capsys, 2).err
        assert "--encoding" in said and "carriage return" not in said
    Path("g.csv").write_bytes(b"a;b\r1;2\r")
    assert "carriage return" in call(line, capsys, 2).err


def test_a_run_prints_little_beside_its_rows(folder, capsys):
    write(np.random.default_rng(1).geometric(1 / 6, 2_000))
    with Path("e.csv").open("a") as file:
        file.write(f"\nu1,i1,{START - 86_400},1\n")
    asked = f"--input e.csv --time_unit s --key key {RUN.replace('--ledger none', '')} --epsilon 1"
    for line in (
        "counts --delta 1e-6 --max_contributions 8",
        "quantiles --low 1 --high 100",
        "cardinality --delta 1e-6 --timeout 1d",
    ):
        word, _, more = line.partition(" ")
        said = call(f"{word} {asked} {more} --output {word}.jsonl", capsys).err
        assert "1 outside of --start to --end" in said and "privacy    epsilon 1" in said and "accuracy   " in said
        assert len(said.splitlines()) <= 12 and len(said.split()) <= 110 and said.count("WARNING") <= 1
