"""Batches that wait on disk: the same rows, nothing left behind, and one clear line where the disk fails."""

import errno
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from counts_workloads import CONFIGURATIONS, expected, random_events, transform
from event_forms import as_rows, run_bounded
from grids import some_quick
from privstream.transforms import spill
from privstream.transforms.batches import CountBatch, Names, decode, encode
from privstream.transforms.spill import SMALLEST, SpillError, SpillFile, fetch, put_away, spilled

LARGE = bytes(range(256)) * (SMALLEST // 128)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_large_batches_come_back_and_small_ones_stay():
    with spilled():
        references = [put_away(LARGE + bytes([i])) for i in range(5)]
        assert all(len(reference) < 50 for reference in references)
        assert [fetch(reference) for reference in reversed(references)] == [LARGE + bytes([i]) for i in (4, 3, 2, 1, 0)]
        assert put_away(LARGE[: SMALLEST - 1]) == LARGE[: SMALLEST - 1]
    assert put_away(LARGE) == LARGE


def test_references_sort_by_content_whatever_came_first():
    parts = [LARGE + bytes([i]) for i in range(20)]
    orders = []
    for seed in (1, 2):
        random.Random(seed).shuffle(parts)
        with spilled():
            orders.append([fetch(reference) for reference in sorted(map(put_away, parts))])
    assert orders[0] == orders[1]


def test_the_file_has_no_name_and_other_users_cannot_open_it(folder):
    with spilled():
        put_away(LARGE)
        assert list(folder.iterdir()) == []


def test_runs_that_overlap_share_a_file_until_the_last_one_ends():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with spilled():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with spilled():
        thread.start()
        assert entered.wait(10)
        reference = put_away(LARGE)
        leave.set()
        thread.join()
        assert fetch(reference) == LARGE
    with pytest.raises(SpillError, match="in the run that wrote them"):
        fetch(reference)


def test_a_full_disk_is_one_clear_line(monkeypatch, folder):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spill.os, "pwrite", full)
    with (
        spilled(),
        pytest.raises(SpillError, match=f"cannot write waiting events in {folder}: No space left on device"),
    ):
        put_away(LARGE)


def test_writes_that_take_several_calls_are_whole(monkeypatch, folder):
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(spill.os, "pwrite", lambda file, data, at: write(file, data[:100], at))
    monkeypatch.setattr(spill.os, "pread", lambda file, length, at: read(file, min(length, 77), at))
    file = SpillFile(folder)
    references = [file.put(LARGE), file.put(LARGE[::-1])]
    assert list(map(file.get, references)) == [LARGE, LARGE[::-1]]


def test_a_folder_that_cannot_be_written_to_is_named(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/proc/nowhere")
    with pytest.raises(SpillError, match="the folder for waiting events, /proc/nowhere, must be writable"), spilled():
        pass


def test_without_a_folder_named_it_is_one_on_disk(monkeypatch):
    monkeypatch.delenv("TMPDIR")
    assert spill._folder() == Path("/var/tmp")


def test_encoded_batches_are_references():
    batch = CountBatch(np.arange(1000, dtype=np.uint64), np.arange(1000), Names.none())
    with spilled():
        data = encode(batch)
        assert len(data) < 50
        assert decode(CountBatch, data).counts.tolist() == list(range(1000))
    assert len(encode(batch)) > 16_000


@some_quick("name", list(CONFIGURATIONS), "start")
def test_rows_are_the_same(name, monkeypatch):
    monkeypatch.setattr(spill, "SMALLEST", 1)
    events = random_events(name, random.Random(3))
    made = transform(name)
    with spilled():
        results = run_bounded("fn_api", as_rows(events), made)
        assert spill._Shared.file.size > 10_000
    assert sorted(results.elements("rows")) == expected(made, events)
