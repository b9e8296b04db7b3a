"""Results of every question as its command writes them, with guarantee files and a ledger; names that would do harm."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_record
from privstream.mechanisms.privacy.units import PERSON
from privstream.pipelines.accounts.entries import Entry
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.locations import GUARANTEE
from privstream.pipelines.model.catalogue import question
from privstream.pipelines.sinks.row_files import plain_table, shape_of, write_row_file
from privstream.pipelines.sinks.writers import file_name
from privstream.transforms.row_types import Time

START, HOUR = 1_704_067_200, 3600
KEY = b"an example, not a secret"
HOSTILE = [
    "<script>document.title='ran'</script>",
    "</script><script>document.title='ran'</script>",
    '"><img src=x onerror="document.title=\'ran\'">',
    "' onmouseover='document.title=1' x='",
    "</svg></style></title><svg onload=document.title='ran'>",
    "{{ 7 * 7 }}{% raw %}",
    "line\u2028paragraph\u2029end",
    "\u202edesrever\u2066",
    "--><!--\x1b[31m",
]
PERSONS = PrivacyGuarantee(
    unit=PERSON,
    epsilon=1.0,
    delta=1e-6,
    limits=("Each person takes part in at most 4 windows.",),
    proof="docs/proofs/clock.md, Theorem 2",
    caveats=("All noise is <keyed>.",),
)


def arrow_table(row_type: Any, rows: Any) -> pa.Table:
    """Return rows as a table as they are written."""
    shape, plain = shape_of(row_type), plain_table(row_type, rows)
    return (shape.split(plain) if shape.parts else plain).select(shape.schema.names).cast(shape.schema)


def row_of(word: str, hour: int, name: str) -> Any:
    row_type = question(word).row_type
    start = Timestamp(START + hour * HOUR)
    usual = {str: name, int: 100 + hour, float: 100.5 + hour, bool: True, Time: start}
    values = {field: usual[kind] for field, kind in shape_of(row_type).fields.items()}
    fixed = {"status": "started", "source": "measured", "window_end": Timestamp(START + (hour + 1) * HOUR)}
    fixed |= {"error_bound": 9, "lower": 90.0, "upper": 200.0, "quantile": 0.5, "rank": 1}
    fixed = {field: value for field, value in fixed.items() if field in values}
    whole = {field: int(value) for field, value in fixed.items() if type(values[field]) is int and value is not None}
    return row_type(**(values | fixed | whole))


def write(
    folder: Path, word: str, names: tuple[str, ...] = ("tea", "coffee"), guarantee: PrivacyGuarantee = PERSONS
) -> Path:
    """Write a result of a question, and record it in the ledger."""
    path = folder / f"{word}.jsonl"
    write_row_file(
        str(path), question(word).row_type, [row_of(word, hour, name) for name in names for hour in range(3)]
    )
    promise = {
        "made_by": {"command": f"privstream {word}", "version": "1.0.0"},
        "parameters": {"epsilon": 1.0, "beta": 0.05, "run_id": f"run-{word}", "max_hits": 4},
        "guarantee": guarantee_record(guarantee),
        "accuracy": {"sentence": "Accuracy <of the run>.", "detection_threshold": 90, "threshold": 80},
    }
    entry = Entry.of(
        guarantee,
        time="2030-01-31T12:00:00+00:00",
        label=f"data-{word}",
        digest=word,
        name=f"run-{word}",
        dataset="shop",
        command=word,
        version="1.0.0",
        data="0123secretdigest",
        key=KeyedNoise(KEY).fingerprint,
        output="",
    )
    receipt = Ledger(str(folder / "key.ledger.jsonl")).append(entry)
    mark = {"line": receipt.line, "head": receipt.head}
    Path(f"{path}.guarantee.json").write_text(json.dumps(promise | {"ledger": mark}))
    return path


def watched(folder: Path, word: str) -> Path:
    """Make the folder of a run without an end, with its guarantee and no window yet."""
    promise = Path(f"{write(folder, word)}.guarantee.json")
    (folder / f"{word}.jsonl").unlink()
    (folder / word).mkdir()
    return promise.rename(folder / word / GUARANTEE).parent


def add_window(windows: Path, hour: int, *names: str, format: str = "jsonl") -> Path:
    """Write the file of a window as a run without an end does, into a folder that has the name of its question."""
    rows = [row_of(windows.name, hour, name) for name in names]
    micros = (START + hour * HOUR) * 1_000_000
    path = windows / file_name(micros, micros + HOUR * 1_000_000, format)
    write_row_file(str(path), type(rows[0]), rows)
    return path
