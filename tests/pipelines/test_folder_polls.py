"""A watched folder: each file once, in order, whatever the folder does meanwhile."""

import itertools
import json
import os

import pytest
from privstream.pipelines.sources.readers import KEPT_SECONDS, FolderPolls, Seen, list_folder, split_pattern
from privstream.transforms.timing.steps import MICROS

NOW = 2_000_000_000 * MICROS


def seen(name: str, came: int = NOW - 10 * MICROS, size: int = 1) -> Seen:
    return Seen(f"/in/{name}", size, came, came)


def names(found) -> list[str]:
    return [each.name for each in found]


def restored(polls: FolderPolls) -> FolderPolls:
    return FolderPolls(*json.loads(polls.to_bytes()))


def test_a_file_is_taken_at_the_second_look_and_never_again():
    polls, listing = FolderPolls(), [seen("b.csv", NOW - 5), seen("a.csv", NOW - 4)]
    assert polls.poll(listing, NOW) == ([], NOW - 5)
    polls = restored(polls)
    found, reached = polls.poll(listing, NOW + 1)
    assert (names(found), reached) == (["b.csv", "a.csv"], NOW + 1)
    for later in range(2, 5):
        polls = restored(polls)
        assert polls.poll(listing, NOW + later) == ([], NOW + later)


def test_a_file_that_grows_waits_until_it_rests_and_holds_the_watermark_at_its_last_change():
    polls = FolderPolls()
    for size in range(1, 5):
        file = Seen("/in/a.csv", size, NOW + size, NOW + size)
        assert polls.poll([file], NOW + size + 1) == ([], NOW + size)
    found, reached = polls.poll([file], NOW + 9)
    assert names(found) == ["a.csv"]
    assert reached == NOW + 9


def test_a_file_that_changes_after_it_was_taken_is_counted_and_not_read_again():
    polls = FolderPolls()
    for _ in range(2):
        polls.poll([seen("a.csv")], NOW)
    assert polls.changed == 0
    for _ in range(3):
        assert polls.poll([seen("a.csv", size=2)], NOW)[0] == []
        assert polls.changed == 1


def test_the_same_name_again_is_a_new_file_once_it_was_gone():
    polls = FolderPolls()
    for _ in range(2):
        polls.poll([seen("a.csv")], NOW)
    polls.poll([], NOW)
    assert polls.poll([seen("a.csv")], NOW)[0] == [], "a listing was incomplete"
    polls.poll([], NOW)
    again = [seen("a.csv", NOW, size=7)]
    assert polls.poll(again, NOW)[0] == []
    assert names(polls.poll(again, NOW)[0]) == ["a.csv"]


def test_what_is_gone_for_long_is_forgotten():
    polls = FolderPolls()
    sizes = []
    for second in range(0, 6 * KEPT_SECONDS, 600):
        listing = [seen(f"{second:05}.csv")]
        for _ in range(2):
            polls.poll(listing, NOW + second * MICROS)
        sizes.append(len(polls.to_bytes()))
    assert sizes[12] == sizes[-1] > sizes[0]


@pytest.mark.parametrize("order", list(itertools.permutations(["a.csv", "b.csv", "_END"])))
def test_the_end_waits_for_the_files_that_came_before_it(order):
    came = {"a.csv": NOW, "b.csv": NOW + 1, "_END": NOW + 2}
    polls, taken, there = FolderPolls(), [], []
    for name in [*order, *[None] * 3]:  # a listing may show them in any order
        if name:
            there.append(seen(name, came[name]))
        found, reached = polls.poll(there, NOW + 9)
        taken += names(found)
        if reached is None:
            break
    assert reached is None
    if order[-1] == "_END":
        assert sorted(taken) == ["a.csv", "b.csv"]


def test_a_mark_counts_once_what_came_before_it_has_been_taken():
    mark = "_UNTIL_20300101T120000Z"
    listing = [seen("a.csv", NOW), seen(mark, NOW + 1), seen("b.csv", NOW + 2)]
    polls = FolderPolls()
    polls.poll(listing[1:2], NOW + 3)
    polls.poll(listing, NOW + 3)
    assert polls.until == 0  # a.csv came before the mark and has been seen only once
    polls.poll(listing, NOW + 3)
    assert restored(polls).until == 1893499200 * MICROS


def test_a_file_comes_when_it_is_renamed_into_the_folder_whatever_its_own_time(tmp_path):
    (tmp_path / "old").write_text("x")
    os.utime(tmp_path / "old", (1, 1))
    (tmp_path / "in").mkdir()
    before = (tmp_path / "old").stat().st_ctime_ns // 1000
    os.rename(tmp_path / "old", tmp_path / "in" / "a.csv")
    (file,) = list_folder(str(tmp_path / "in"))
    assert file.came >= before > 1_000_000 * MICROS
    assert file.changed == MICROS


def test_a_folder_that_cannot_be_listed_is_no_empty_folder(tmp_path):
    assert list_folder(str(tmp_path / "missing")) is None
    with pytest.raises(ValueError, match="--input must be a folder, or a folder and a glob"):
        split_pattern("in/*/a.csv")
