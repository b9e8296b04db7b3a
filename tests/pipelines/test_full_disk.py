"""A disk that is full of waiting events: one clear line, an exit code, and no rows."""

import errno
import json
import os

from privstream.pipelines.cli import main
from privstream.transforms import spill


def test_a_full_disk_ends_the_command_without_rows(tmp_path, monkeypatch, capsys):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    events, rows = tmp_path / "events.jsonl", tmp_path / "rows.jsonl"
    records = [{"user": f"u{i}", "item": "a", "time": f"2024-01-01T00:00:{i % 60:02}Z"} for i in range(100)]
    events.write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(spill, "SMALLEST", 1)
    monkeypatch.setattr(spill.os, "pwrite", full)
    options = ["--input", str(events), "--output", str(rows), "--window", "1h", "--epsilon", "1", "--delta", "1e-6"]
    code = main(
        ["counts", *options, "--max_contributions", "1", "--noise_key_file", _key(tmp_path), "--ledger", "none"]
    )
    assert code != 0
    assert f"cannot write waiting events in {tmp_path}: No space left on device" in capsys.readouterr().err
    assert not rows.exists()


def _key(folder):
    path = folder / "noise.key"
    path.touch(mode=0o600)
    path.write_bytes(bytes(range(32)))
    return str(path)
