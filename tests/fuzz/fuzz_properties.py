"""What must hold of every case."""

from collections import Counter

from fuzz_cases import Case
from fuzz_damage import Damaged
from fuzz_meaning import Rules
from fuzz_reading import Outcome, read
from fuzz_values import CANARY

TRACES = ("Traceback", 'File "', "0x7f", "<class ")


def check_one_record_decides_for_itself(case: Case) -> None:
    """One record more is one event more, or one dead letter, and nothing else."""
    without, added = read(case.without, case.rules), read(case.added, case.rules)
    check_error_is_clear(without.error)
    check_error_is_clear(added.error)
    assert not without.error, f"an honest file is refused: {without.error}\n{case}"
    assert without.events == Counter(case.expected()), (
        f"honest events are read otherwise: {_difference(without, case)}\n{case}"
    )
    assert not added.error, f"one record ends the run: {added.error}\n{case}"
    lost, more = without.events - added.events, added.events - without.events
    assert not lost, f"{lost.total()} events of others are lost, such as {next(iter(lost))}\n{case}"
    expected = Counter([case.meaning] if case.meaning else [])
    assert more == expected, f"the record became {more or 'nothing'}\n{case}"
    letters = len(added.letters) - len(without.letters)
    allowed = {0} if case.meaning else {0, 1} if case.blank else {1}
    assert letters in allowed, f"the record became {letters} dead letters: {added.letters[:3]}\n{case}"


def check_error_is_clear(message: str) -> None:
    """An error quotes no record, and shows no trace of the program; commands see to it that it is one line."""
    assert CANARY not in message, f"an error quotes a record: {message!r}"
    assert not any(trace in message for trace in TRACES), f"an error shows the program: {message!r}"
    assert len(message) < 2000, f"an error is too long: {message[:300]}"


def _difference(without: Outcome, case: Case) -> str:
    """Say in what an honest file is read otherwise."""
    honest = Counter(case.expected())
    missing, invented = list(honest - without.events), list(without.events - honest)
    return f"missing {missing[:2]}, invented {invented[:2]}, {without.letters[:2]}"


def check_damage_is_noticed(damaged: Damaged) -> None:
    """A damaged file gives what is whole in it, and says what is not: an error that names it, or dead letters."""
    found = read(damaged.path, Rules())
    check_error_is_clear(found.error)
    if found.error:
        assert damaged.path.name in found.error, f"an error does not name the file: {found.error!r}\n{damaged}"
        return
    honest = Counter(damaged.honest)
    same = found.events == honest
    if damaged.sealed and damaged.how not in ("empty", "bytes added"):
        assert same, f"damage goes unnoticed: {found.events.total()} of {honest.total()} events, no error\n{damaged}"
    if damaged.cut and damaged.path.suffix in (".avro", ".parquet"):
        assert found.events <= honest, f"what is cut off is made up: {list(found.events - honest)[:2]}\n{damaged}"
        assert same or found.letters, f"{(honest - found.events).total()} events are lost in silence\n{damaged}"
