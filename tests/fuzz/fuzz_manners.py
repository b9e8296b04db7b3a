"""How a command must behave, whatever it is given."""

import re
import unicodedata
from collections.abc import Sequence

from fuzz_commands import Ran
from fuzz_values import CANARY

TRACES = ("Traceback (most recent call last)", 'File "', "Exception ignored in", "DEBUG:", "apache_beam/")
CLEAR = re.compile(r"^privstream[\w -]*: error: \S.*", re.MULTILINE)


def check_manners(ran: Ran, *, typed: Sequence[str] = ()) -> None:
    """Check exit status, what is said, and what is left behind.

    Args:
        ran: a run of a command.
        typed: what the user typed, and a message may repeat.
    """
    assert ran.status in (0, 1, 2, 3), f"an exception escaped, or the status is none of 0 to 3:\n{ran}"
    for trace in TRACES:
        assert trace not in ran.err + ran.out, f"`{trace}` is shown\n{ran}"
    if ran.status:
        errors = CLEAR.findall(ran.err)
        assert len(errors) == 1, f"{len(errors)} clear lines say what went wrong\n{ran}"
    check_nothing_private(ran, typed)
    check_files(ran)


def check_nothing_private(ran: Ran, typed: Sequence[str] = ()) -> None:
    """Nothing of a record, and nothing that steers a terminal, is said."""
    said = ran.err
    for word in typed:
        for part in (word, word.partition("=")[2]):
            said = said.replace(part, "") if part else said
    assert CANARY not in said, f"a user, an item or a record is shown\n{ran}"
    steering = [
        sign for sign in ran.err if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp", "Cs") and sign != "\n"
    ]
    assert not steering, f"control characters are shown: {steering[:5]!r}\n{ran}"


def check_files(ran: Ran) -> None:
    """Output exists whole or not at all, and a guarantee only beside rows."""
    left = [path.name for path in ran.folder.rglob("*") if path.name.endswith(".partial")]
    assert not left, f"half-written files are left: {left}\n{ran}"
    if "rows.jsonl" not in " ".join(ran.arguments):
        return
    assert ran.guarantee is None or ran.rows is not None, f"a guarantee is left without rows\n{ran}"
    if ran.status in (0, 3):
        assert ran.rows is not None and ran.guarantee is not None, f"rows or guarantee are missing\n{ran}"
    if ran.status == 2:
        assert ran.rows is None, f"a run that was not started has written rows\n{ran}"
    assert ran.rows is None or not ran.rows or ran.rows.endswith("\n"), f"rows are cut off\n{ran}"
