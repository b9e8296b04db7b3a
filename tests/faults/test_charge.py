"""Nothing is charged for a run that cannot publish, and what was charged is said."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from privstream.pipelines import cli
from questions import overridden

RUN = "counts --window 7d --start 2030-01-01 --end 2030-01-29 --epsilon 1 --delta 1e-6 --key key --output rows.csv"
ROWS = [{"user": f"u{n}", "item": "a", "time": f"2030-01-{n % 28 + 1:02}T10:00:00Z"} for n in range(500)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)


def refused(path: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Check that a run is refused, unpaid; return what is said."""
    assert cli.main([*RUN.split(), "--input", path, *options]) == 2
    assert not Path("key.ledger.jsonl").exists() and not Path("rows.csv").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "option"),
    [("03.01.2030 10:00", "--time-format"), ("1893495600", "--time-unit"), ("2030-01-03T10:00:00", "--time-zone")],
)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_p2_times_that_cannot_be_read_are_refused_before_the_charge(value, option, ending, capsys) -> None:
    rows = [row | {"time": value} for row in ROWS]
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), "a.parquet")
    elif ending == "jsonl":
        Path("a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        Path("a.csv").write_text("user,item,time\n" + "".join(f"{row['user']},a,{value}\n" for row in rows))
    told = refused(f"a.{ending}", capsys)
    assert option.replace("_", "-") in told.replace("_", "-") and "--time time" in told and value not in told
    assert cli.main([*RUN.split(), "--input", f"a.{ending}", "--dry_run"]) == 3, "a dry run counts why"


def test_p2_one_record_that_can_be_used_is_enough(capsys) -> None:
    lines = ["u1,a,03.01.2030", "u1,a,2030-01-03T10:00:00Z"]
    Path("a.csv").write_text("user,item,time\n" + "\n".join(lines) + "\n")
    assert cli.main([*RUN.split(), "--input", "a.csv"]) == 0


def test_p2_a_monitor_is_refused_too(capsys) -> None:
    Path("a.csv").write_text("user,item,time\n" + "u1,a,03.01.2030 10:00\n" * 50)
    Path("m.yaml").write_text(
        "data: {input: a.csv}\nprivacy: {epsilon: 1, delta: 1e-6}\nquestions:\n"
        "  pages: {question: counts, windows: {window: 1d, start: 2030-01-01, end: 2030-02-01}}\noutput: {path: out}\n"
    )
    assert cli.main(["run", "m.yaml", "--key", "key"]) == 2
    assert "time_format" in capsys.readouterr().err and not Path("key.ledger.jsonl").exists()


@pytest.mark.parametrize("line", ['u1,"a,2030-01-03', '"u1"",a,2030-01-03'])
def test_p3_a_quote_that_is_not_closed_is_refused_before_the_charge_however_late_it_comes(line, capsys) -> None:
    rows = ["u1,a,2030-01-03T10:00:00Z"] * 200_000
    Path("a.csv").write_text("\n".join(["user,item,time", *rows, line, *rows, 'u1,"a",2030-01-03', *rows]) + "\n")
    assert "line 200002" in refused("a.csv", capsys)


def spend(dataset: str | None, epsilon: str) -> int:
    """Run counts of good rows."""
    Path("a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    named = [] if dataset is None else ["--dataset", dataset]
    return cli.main(overridden([*RUN.split(), "--input", "a.jsonl", "--overwrite", "--epsilon", epsilon, *named]))


def test_e3_fit_takes_the_data_set_of_runs(capsys) -> None:
    assert spend(None, "1") == 0
    capsys.readouterr()
    assert cli.main(["budget", "fit", "--ledger", "key.ledger.jsonl", "--epsilon", "1", "--limit", "3,1e-5"]) == 0
    assert "2 runs fit" in capsys.readouterr().out


def test_e3_a_data_set_gets_a_name_with_its_runs_and_its_limit(capsys) -> None:
    assert spend(None, "1") == 0
    assert spend("shop", "1") == 2, "these data have another name"
    assert cli.main(["budget", "rename", "--ledger", "key.ledger.jsonl", "--to", "shop"]) == 0
    assert cli.main(["budget", "set", "--ledger", "key.ledger.jsonl", "--dataset", "shop", "--limit", "3,1e-5"]) == 0
    capsys.readouterr()
    assert spend("shop", "1") == 0
    assert "a repetition" in capsys.readouterr().err
    assert spend("shop", "3.2") == 2 and spend(None, "1") == 2
    assert cli.main(["budget", "rename", "--ledger", "key.ledger.jsonl", "--dataset", "shop", "--to", "store"]) == 0
    assert spend("store", "3.2") == 2 and spend("store", "2") == 0
    assert cli.main(["budget", "verify", "--ledger", "key.ledger.jsonl", "--guarantee", "rows.csv"]) == 0
