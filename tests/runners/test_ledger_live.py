"""A ledger in a real PostgreSQL: one budget for several machines, of which two cannot take the last epsilon."""

import multiprocessing
from contextlib import suppress

import postgres_server
import pytest
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines import cli
from privstream.pipelines.accounts.entries import BudgetLimit, Entry
from privstream.pipelines.accounts.ledger import Ledger

pytest.importorskip("psycopg")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("destinations")]
LINE = "counts --input a.csv --window 1d --start 2024-01-01 --end 2024-01-02 --epsilon 1 --delta 1e-6"


def entry(label):
    guarantee = PrivacyGuarantee(unit=PERSON, epsilon=1.0, delta=0.0)
    texts = dict.fromkeys(("digest", "name", "command", "version", "data", "key", "output"), label)
    return Entry.of(guarantee, label=label, dataset="shop", **texts)


def test_runs_limits_and_the_chain_are_as_in_a_file(postgres, tmp_path):
    for place in (str(tmp_path / "ledger"), postgres.url("chain")):
        ledger = Ledger(place)
        assert ledger.append(entry("one"), dry=True).line == 1
        assert ledger.contents().lines == ()
        assert ledger.set_limit("shop", BudgetLimit(2.0, 0.0)).line == 1
        assert ledger.append(entry("one")).line == 2
        assert ledger.append(entry("one")).repeats
        ledger.append(entry("two"))
        with pytest.raises(ValueError, match="the limit of data set 'shop' must not be exceeded"):
            ledger.append(entry("three"))
        assert [one.label for one in ledger.contents().entries] == ["one", "one", "two"]
        assert ledger.contents().limits["shop"].epsilon == 2.0
    postgres.ask('UPDATE chain SET line = replace(line, \'"label":"one"\', \'"label":"own"\') WHERE number = 2')
    with pytest.raises(ValueError, match="line 3 must follow the lines before it"):
        ledger.append(entry("four"))
    postgres.ask("DELETE FROM chain WHERE number = 2")
    with pytest.raises(ValueError, match="line 2 must follow the lines before it"):
        ledger.contents()


def _append_many(place, barrier, name):
    barrier.wait()
    for number in range(10):
        with suppress(ValueError):
            Ledger(place).append(entry(f"{name} {number}"))


def test_two_machines_at_once_do_not_pass_the_limit(postgres):
    place, context = postgres.url("shared"), multiprocessing.get_context("fork")
    Ledger(place).set_limit("shop", BudgetLimit(12.0, 0.0))
    barrier = context.Barrier(2)
    processes = [context.Process(target=_append_many, args=(place, barrier, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    found = Ledger(place).contents().entries
    assert len({one.label for one in found}) == len(found) == 12


def test_the_commands_take_it(postgres, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    place = postgres.url("commands")
    (tmp_path / "a.csv").write_text("user,item,time\nsomebody,wish,2024-01-01T00:00:01Z\n")
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    assert cli.main(["budget", "set", "--ledger", place, "--dataset", "shop", "--limit", "1.5,1e-5"]) == 0
    own = ["--max_contributions", "1", "--key", "key", "--ledger", place, "--dataset", "shop"]
    assert cli.main([*LINE.split(), *own, "--output", "rows.csv"]) == 0
    assert cli.main([*LINE.split(), *own, "--output", "more.csv", "--min_people", "2"]) == 2
    assert "the limit of data set 'shop' must not be exceeded" in capsys.readouterr().err
    assert not (tmp_path / "more.csv").exists()
    assert cli.main(["budget", "verify", "--ledger", place, "--guarantee", "rows.csv"]) == 0
    assert cli.main(["budget", "show", "--ledger", place]) == 0
    shown = capsys.readouterr()
    assert "limit epsilon 1.5, delta 1e-05" in shown.out
    assert not any(secret in shown.out + shown.err for secret in (postgres_server.PASSWORD, "somebody", "wish"))
    lines = " ".join(line for (line,) in postgres.ask("SELECT line FROM commands"))
    assert not any(secret in lines for secret in (postgres_server.PASSWORD, "somebody", "wish"))
