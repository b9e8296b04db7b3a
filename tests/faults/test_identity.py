"""A run is what it draws: the same digest has the same noise and is charged once, another one has other noise."""

import csv
import json
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from privstream.pipelines import cli
from privstream.pipelines.accounts.ledger import Ledger
from questions import overridden

DAY = "--window 6h --start 2026-01-01 --end 2026-01-02 --epsilon 2"
USUAL: dict[str, tuple[str, str]] = {
    "counts": (f"{DAY} --delta 1e-3 --max_contributions 4", "noisy"),
    "heavy-hitters": (f"{DAY} --delta 1e-3 --method counts", "people"),
    "top-k": (f"{DAY} --domain items", "people"),
    "alerts": (f"{DAY} --rules rules", "estimate"),
    "histogram": (f"{DAY} --domain items", "estimate"),
    "quantiles": (f"{DAY} --low 0 --high 100 --max_contributions 3", "noisy"),
    "flags": (f"{DAY} --domain items --thresholds 5", ""),
    "cardinality": (f"{DAY} --timeout 2h", "noisy"),
    "ranges": (f"{DAY} --universe 64 --queries ranges", "estimate"),
    "predecessor": (f"{DAY} --universe 64 --queries points", "answer"),
    "queries": ("--epsilon 2 --records 2000 --queries linear --domain items", "answer"),
}
"""Of each question a run, and the column with its noise; flags have times alone."""

FREE = ("--dead_letter letters.csv", "--workers 1", "--dataset default")
"""Options that no question draws anything by."""

VIEWS = {
    "counts": ("--rising 1", "--at_least 9", "--top 2", "--over 12h"),
    "heavy-hitters": ("--threshold 30",),
    "top-k": ("--top 3", "--max_contributions 100"),
    "alerts": ("--rules higher",),
}
"""Options by which rows are chosen or made of what was drawn, or that say a default."""

SUMS = "--over 12h"
"""Whose cells are sums of the others."""
DRAWN = {
    "counts": ("--max_contributions 3", "--window 3h", "--epsilon 3", "--domain items", "--min_people 5"),
    "heavy-hitters": ("--epsilon 3", "--domain items", "--window 3h"),
    "top-k": ("--max_contributions 3", "--window 3h"),
    "alerts": ("--max_contributions 3", "--window 3h", "--rules other"),
    "histogram": ("--largest 8", "--window 3h", "--domain fewer"),
    "flags": ("--epsilon 3", "--thresholds 7", "--domain fewer"),
    "queries": ("--alpha 0.4", "--records 3000", "--queries others", "--domain fewer"),
    "cardinality": ("--timeout 4h", "--epsilon 3"),
    "quantiles": ("--high 90", "--max_contributions 2", "--epsilon 3"),
    "ranges": ("--universe 128", "--epsilon 3"),
    "predecessor": ("--universe 128", "--epsilon 3"),
}
RULES = ((), ("--rules higher",), ("--rules other",))
SOME = ("--where item!='7'", "--epsilon 3")
"""Options that every question draws, or reads, by."""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("identity"))
        events()
        yield
    drawn.cache_clear()


def events(people: int = 400, path: str = "a.csv") -> None:
    """Write events of people, and all that options name."""
    random = Random(5)
    with Path(path).open("w") as file:
        write = csv.writer(file)
        write.writerow(["user", "item", "time", "value"])
        for person in range(people):
            for _ in range(random.randint(1, 6)):
                item, hour = min(random.randint(0, 7), random.randint(0, 7)), random.randint(0, 23)
                write.writerow([person, item, f"2026-01-01T{hour:02}:00:01Z", random.randint(0, 99)])
    Path("items").write_text("".join(f"{number}\n" for number in range(8)))
    Path("fewer").write_text("".join(f"{number}\n" for number in range(7)))
    Path("others").write_text('{"name": "y", "items": ["0", "2"]}\n')
    Path("rules").write_text('{"name": "r", "at_least": 40, "items": ["0", "1"]}\n')
    Path("other").write_text('{"name": "r", "at_least": 40, "items": ["0", "2"]}\n')
    Path("higher").write_text('{"name": "r", "at_least": 60, "items": ["1", "0"], "clear_below": 50}\n')
    Path("ranges").write_text('{"low": 1, "high": 3}\n')
    Path("points").write_text('{"point": 5}\n')
    Path("linear").write_text('{"name": "y", "items": ["0", "1"]}\n')
    Path("key").write_bytes(bytes(range(32)))
    Path("key").chmod(0o600)


@cache
def drawn(word: str, options: tuple[str, ...], ledger: str = "ledger") -> tuple[str, str, bool, dict[str, float]]:
    """Run a question; return label and digest of the run, whether it was charged, and its noisy cells."""
    usual, column = USUAL[word]
    path = f"{word}{abs(hash(options))}.jsonl"
    words = [part for option in options for part in option.split(maxsplit=1)]
    known = len(_releases(ledger)) if Path(ledger).exists() else 0
    line = [word, "--input", "a.csv", *usual.split(), "--key", "key", "--ledger", ledger]
    assert cli.main(overridden([*line, *words, "--output", path, "--overwrite"])) == 0
    rows = [json.loads(row) for row in Path(path).read_text().splitlines()]
    names = ("window_start", "item", "rule", "category", "quantile", "low", "point")
    cells = {
        json.dumps([row.get(name) for name in names]): row[column]
        for row in rows
        if column and row.get(column) is not None
    }
    last = Ledger(ledger).contents().entries[-1]
    return last.label, last.digest, len(_releases(ledger)) > known, cells


def _releases(ledger: str) -> set[tuple[str, ...]]:
    return {entry.release for entry in Ledger(ledger).contents().entries}


def option_sets(word: str) -> st.SearchStrategy[tuple[str, ...]]:
    """Return sets of options of a question that differ in what is drawn, in how it is read, or in neither."""
    parts = (FREE, VIEWS.get(word, ()), (*DRAWN[word], *SOME))
    each = [st.sampled_from([(), *((one,) for one in part)]) for part in parts]
    return st.tuples(*each).map(lambda found: tuple(option for part in found for option in part))


def check(word: str, one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Compare digests, charges and rows of two runs."""
    first, second = drawn(word, one), drawn(word, other)
    assert (first[0] == second[0]) == (first[1] == second[1])
    shared = first[3].keys() & second[3].keys()
    if first[1] == second[1] and (SUMS in one) == (SUMS in other):
        assert {cell: first[3][cell] for cell in shared} == {cell: second[3][cell] for cell in shared}
    elif first[1] != second[1] and len(shared) > 8:
        assert any(first[3][cell] != second[3][cell] for cell in shared)


@pytest.mark.slow
@pytest.mark.parametrize("word", USUAL)
def test_p1_each_option_is_drawn_by_or_is_not(word: str) -> None:
    """An option that is forgotten in a digest, or in it for nothing, is found alone."""
    for option in (*FREE, *VIEWS.get(word, ()), *DRAWN[word], *SOME):
        check(word, (), (option,))


@pytest.mark.slow
@pytest.mark.parametrize("word", USUAL)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_p1_the_same_digest_has_the_same_noise_and_another_has_other_noise(word: str, data: st.DataObject) -> None:
    check(word, data.draw(option_sets(word)), data.draw(option_sets(word)))


def test_p1_what_draws_nothing_is_free_and_all_else_is_charged() -> None:
    plain = drawn("counts", (), "own")
    for option in (*VIEWS["counts"][:3], *FREE[:2]):
        label, _, charged, _ = drawn("counts", (option,), "own")
        assert (label, charged) == (plain[0], False), option
    for option in ("--max_contributions 3", "--max_per_window 1", "--end 2026-01-01T18:00:00Z", SOME[0]):
        label, _, charged, _ = drawn("counts", (option,), "own")
        assert charged and label != plain[0], option


def test_p1_rules_are_drawn_by_their_items_and_thresholds_are_views() -> None:
    plain, higher, other = (drawn("alerts", options, "rules of alerts") for options in RULES)
    assert not higher[2] and higher[:2] == plain[:2]
    assert higher[3].items() <= plain[3].items()
    assert other[2] and other[1] != plain[1] and other[3] != plain[3]


@pytest.mark.parametrize("named", [(), ("--run_id", "mine")])
def test_p1_top_is_one_release_or_two_that_are_charged(named: tuple[str, ...], tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    events(800)
    line = f"counts --input a.csv {USUAL['counts'][0]} --key key".split()
    assert cli.main(["budget", "set", "--ledger", "key.ledger.jsonl", "--dataset", "default", "--limit", "2,1e-3"]) == 0
    assert cli.main([*line, *named, "--output", "a.jsonl"]) == 0
    capsys.readouterr()
    status = cli.main([*line, *named, "--top", "8", "--output", "b.jsonl"])
    if status == 2:
        assert "must not be exceeded" in capsys.readouterr().err
        assert not Path("b.jsonl").exists()
    else:
        assert "a repetition" in capsys.readouterr().err
        rows = [[json.loads(row) for row in Path(name).read_text().splitlines()] for name in ("a.jsonl", "b.jsonl")]
        every, top = ({(row["window_start"], row["item"]): row["noisy"] for row in each} for each in rows)
        assert top == {cell: every[cell] for cell in top}
