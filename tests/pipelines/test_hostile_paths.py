"""What a name can stand for that is no file of events: each is one clear line, and nothing is waited for."""

import json
import os
from contextlib import contextmanager

import pytest
from privstream.pipelines.cli import main
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.found_files import match_files

GOOD = json.dumps({"user": "u", "item": "a", "time": "2024-01-01"}) + "\n"
FORMATS = ("jsonl", "csv", "avro", "parquet")
NO_FILE = "it is a folder, a pipe or a device, not a file"


def folder(path):
    path.mkdir()


def device(path):
    path.symlink_to("/dev/zero")


def dangling(path):
    path.symlink_to("nowhere")


def circle(path):
    path.symlink_to(path)


@contextmanager
def nobody_special(folder):
    """Be somebody who may not read everything; root may."""
    if os.geteuid() != 0:
        yield
        return
    for each in (folder, *list(folder.parents)[:-2]):
        each.chmod(each.stat().st_mode | 0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def run(tmp_path, capfd):
    """Return a function that runs the command on a path and gives its exit status and the last line it says."""

    def run(path):
        where = [f"--input={path}", f"--output={tmp_path / 'rows.jsonl'}", "--window=3600"]
        status = main(
            ["heavy-hitters", *where, "--epsilon=1", "--delta=1e-6", "--max_hits=1", "--horizon=1", "--method=clock"]
        )
        said = capfd.readouterr().err.strip()
        assert "Traceback" not in said
        assert not (tmp_path / "rows.jsonl").exists()
        return status, said.splitlines()[-1]

    return run


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("make", [folder, os.mkfifo, device])
def test_what_is_no_file_is_named_and_not_waited_for(make, format, tmp_path, run):
    make(tmp_path / f"a.{format}")
    assert run(tmp_path / f"a.{format}") == (
        2,
        f"privstream heavy-hitters: error: cannot read {tmp_path}/a.{format}: {NO_FILE}",
    )


@pytest.mark.parametrize("make", [dangling, circle])
def test_links_to_nowhere_match_nothing(make, tmp_path, run):
    make(tmp_path / "a.jsonl")
    status, said = run(tmp_path / "a.jsonl")
    assert status == 2
    assert said.endswith(f"--input must match at least one file: nothing matches {tmp_path}/a.jsonl")


def test_a_glob_passes_over_folders_and_names_a_pipe(tmp_path):
    (tmp_path / "a.jsonl").write_text(GOOD)
    (tmp_path / "b.jsonl").mkdir()
    assert [file.path for file in match_files(f"{tmp_path}/*.jsonl")] == [f"{tmp_path}/a.jsonl"]
    os.mkfifo(tmp_path / "c.jsonl")
    with pytest.raises(InputFileError, match=rf"c\.jsonl: {NO_FILE}"):
        match_files(f"{tmp_path}/*.jsonl")


@pytest.mark.parametrize("format", ["avro", "parquet"])
def test_a_file_of_no_bytes_without_a_header_is_named(format, tmp_path, run):
    (tmp_path / f"a.{format}").touch()
    status, said = run(tmp_path / f"a.{format}")
    assert status == 2
    assert f"{tmp_path}/a.{format} is empty: it has 0 bytes" in said


@pytest.mark.parametrize("format", ["jsonl", "csv"])
@pytest.mark.parametrize("ending", ["gz", "bz2", "zst"])
def test_a_compressed_file_of_no_bytes_is_named(format, ending, tmp_path, run):
    (tmp_path / f"a.{format}.{ending}").touch()
    status, said = run(tmp_path / f"a.{format}.{ending}")
    assert status == 1
    assert f"{tmp_path}/a.{format}.{ending} cannot be decompressed to its end" in said


def test_a_file_that_may_not_be_read_is_named(tmp_path, run):
    path = tmp_path / "a.jsonl"
    path.write_text(GOOD)
    path.chmod(0)
    with nobody_special(tmp_path):
        status, said = run(path)
    assert status == 2
    assert said.endswith(f"cannot read {path}: Permission denied")


@pytest.mark.parametrize("name", [b"l\xff.jsonl", b"l\xff.csv", b"l\xff.parquet"])
def test_a_name_that_is_no_utf_8_is_refused(name, tmp_path, run):
    path = os.fsencode(tmp_path) + b"/" + name
    with open(path, "w") as file:
        file.write(GOOD)
    status, said = run(tmp_path / f"l*{name[2:].decode()}")
    assert status == 2
    assert said.endswith("its name must be UTF-8")
    assert "\\udcff" in said


def test_control_characters_in_a_name_do_no_harm(tmp_path, run):
    (tmp_path / "c\x1b[31m\u202e.avro").touch()
    status, said = run(tmp_path / "c\x1b[31m\u202e.avro")
    assert status == 2
    assert "is empty" in said
    assert "\x1b" not in said
