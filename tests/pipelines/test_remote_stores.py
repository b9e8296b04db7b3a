"""Files on a store beyond this machine: S3, Google Cloud Storage and HDFS, as servers on this machine speak them."""

import gzip
import hashlib
import io
import json

import pyarrow.parquet as pq
import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from local_stores import SECRET, s3_server
from privstream.pipelines import cli, stores
from privstream.pipelines.accounts.run_identity import content_digest
from privstream.pipelines.sources.files import files_with, match_files
from privstream.pipelines.sources.formats import InputFileError
from privstream.pipelines.stores import check_destination, fingerprint, move_file, whole_file, write_once
from raw_rows import readings

HEADER = "user,item,time\n"
RUN = ["counts", "--window", "1d", "--start", "2024-01-01", "--end", "2024-01-03", "--epsilon", "1", "--delta", "1e-6",
       "--max_contributions", "2"]  # fmt: skip


def lines(first: int, last: int) -> str:
    return HEADER + "".join(f"u{n},tea,2024-01-0{1 + n % 2}T12:00:00Z\n" for n in range(first, last))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as started:
        stores.reach_stores([], PipelineOptions(started.options))
        yield started


@pytest.fixture
def store(server):
    """A store with a folder of files, one of them compressed, and with what is no file of events."""
    server.files.make_bucket()
    server.files.put("in/one.csv", lines(0, 300).encode())
    server.files.put("in/two.csv.gz", gzip.compress(lines(300, 600).encode()))
    server.files.put("in/_SUCCESS", b"")
    server.files.put("in/older/three.csv", lines(600, 900).encode())
    yield server
    server.files.remove_bucket()


@pytest.mark.parametrize("pattern", ["in", "in/", "in/*.csv*"])
def test_a_folder_or_a_glob_of_a_store_is_as_one_of_this_machine(pattern, store, read_all):
    pattern = f"{store.root}/{pattern}"
    assert [file.path for file in match_files(pattern)] == [
        f"{store.root}/in/{name}" for name in ("one.csv", "two.csv.gz")
    ]
    assert {row["user"] for row in read_all(pattern).rows} == {f"u{n}" for n in range(600)}


def test_what_is_not_there_is_named(store):
    for path in (f"{store.root}/none.csv", f"{store.root}/none"):
        with pytest.raises(InputFileError, match=f"nothing matches {path}"):
            match_files(path)
    with pytest.raises(InputFileError, match=f"(nothing matches|cannot list) {store.scheme}://nobody/in"):
        match_files(f"{store.scheme}://nobody/in")
    if store.scheme != "hdfs":  # which makes the folders of a file
        with pytest.raises(ValueError, match=rf"--output must be writable: {store.scheme}://nobody/rows\.csv"):
            check_destination(f"{store.scheme}://nobody/rows.csv")


def test_each_file_of_a_store_is_looked_at_before_a_run(store):
    assert len(files_with(readings(), f"{store.root}/in")) == 2
    store.files.put("in/three.csv", b"who,item,time\n")
    with pytest.raises(ValueError, match=r"--user must name a field of .*/three\.csv: no `user` there"):
        files_with(readings(), f"{store.root}/in")


def test_files_appear_whole_or_not_at_all(store):
    def there() -> list[str]:
        return [name for name in store.files.names() if name.startswith("out/")]

    path = f"{store.root}/out/rows.csv"
    check_destination(path)
    with pytest.raises(KeyError), whole_file(path) as stream:
        stream.write(b"half")
        assert not there()
        raise KeyError
    assert not there()
    for content in (b"first", b"", b"second" * 2_000_000):  # more than a part of an upload
        with whole_file(path, owner_only=True) as stream:
            stream.write(content)
        assert store.files.read("out/rows.csv") == content and there() == ["out/rows.csv"]
    assert fingerprint(path) == hashlib.sha256(content).hexdigest()


def test_what_was_published_first_stays(store):
    for content, told in ((b"", "written"), (b"", "repeated"), (b"other", "refused")):
        assert write_once(f"{store.root}/out/_END", content) == told
    assert store.files.read("out/_END") == b""


def test_an_object_is_overwritten_at_once_and_never_removed_first(store, monkeypatch):
    partial, path = f"{store.root}/out/.rows.csv.partial", f"{store.root}/out/rows.csv"
    stores.upload(io.BytesIO(b"old"), path)
    stores.upload(io.BytesIO(b"new"), partial)
    if store.scheme != "hdfs":  # which holds files, and no objects
        monkeypatch.setattr(FileSystems, "delete", lambda _: pytest.fail("removed"))
    move_file(partial, path)
    assert store.files.read("out/rows.csv") == b"new"


CRC32C = int(f"{0x11EDC6F41:b}"[::-1], 2).to_bytes(5, "little")
"""The polynomial of that checksum, as it stands in bytes: who adds it to a text keeps the checksum."""


def test_contents_that_a_short_checksum_does_not_tell_apart_are_other_data(store):
    for name in ("one.csv", "same.csv"):
        store.files.put(name, lines(0, 10).encode())
    store.files.put(
        "other.csv", bytes(a ^ b for a, b in zip(lines(0, 10).encode(), CRC32C + bytes(1000), strict=False))
    )
    if store.scheme == "gs":
        assert len({FileSystems.checksum(f"{store.root}/{name}.csv") for name in ("one", "same", "other")}) == 1
    one, same, other = (content_digest(f"{store.root}/{name}.csv") for name in ("one", "same", "other"))
    assert one == same != other
    in_parts = []
    for number, content in enumerate((lines(0, 10), lines(0, 10), lines(1, 11))):
        stores.upload(io.BytesIO(content.encode()), f"{store.root}/{number}.csv")
        in_parts.append(content_digest(f"{store.root}/{number}.csv"))
    assert in_parts[0] == in_parts[1] != in_parts[2]
    assert (in_parts[0] == one) == (store.scheme != "s3"), "the checksum there is one of the checksums of the parts"


@pytest.mark.parametrize("option", ["--s3_secret_access_key=abc", "--s3_session_token"])
def test_secrets_are_no_options(option, capsys):
    words = [option] if "=" in option else [option, "abc"]
    assert cli.main([*RUN, "--input", "s3://events/in", "--output", "s3://events/out/rows.csv", *words]) == 2
    told = capsys.readouterr().err
    assert "must not be given, for others could read it: set AWS_SE" in told and "abc" not in told


@pytest.mark.slow
def test_a_run_from_store_to_store(store, tmp_path, capsys):
    (tmp_path / "key").write_text("0123456789abcdef" * 2)
    (tmp_path / "key").chmod(0o600)
    command = [*RUN, "--input", f"{store.root}/in", "--key", str(tmp_path / "key"), *store.options]
    command += ["--output", f"{store.root}/out/rows.parquet", "--dead_letter", f"{store.root}/unused/letters.jsonl"]
    assert cli.main(command) == 0
    assert sorted(name for name in store.files.names() if not name.startswith("in/")) == [
        "out/rows.parquet",
        "out/rows.parquet.guarantee.json",
        "unused/letters.jsonl",
    ]
    assert store.files.read("unused/letters.jsonl") == b""  # nothing could not be used
    assert json.loads(store.files.read("out/rows.parquet.guarantee.json"))["guarantee"]["epsilon"] == 1
    found = pq.read_table(io.BytesIO(store.files.read("out/rows.parquet"))).to_pylist()
    assert [row["item"] for row in found] == ["tea"] * 2 and all(abs(row["noisy"] - 300) < 60 for row in found)
    assert cli.main(command) == 2
    assert "rows.parquet exists; --overwrite replaces it" in capsys.readouterr().err
    assert cli.main([*command, "--overwrite"]) == 0
    told = capsys.readouterr().err
    assert "a repetition" in told and SECRET.split()[0] not in told
    store.files.put("in/one.csv", lines(0, 301).encode())
    assert cli.main([*command, "--overwrite"]) == 0
    assert "a repetition" not in capsys.readouterr().err  # other contents are other data


@pytest.mark.slow
@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_results_of_a_store_are_reported_and_a_monitor_writes_into_one(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(
        f"data: {{input: '{store.root}/in'}}\nwindows: {{window: 1d, start: 2024-01-01, end: 2024-01-03}}\n"
        "privacy: {epsilon: 1, delta: 1e-6}\nquestions:\n  pages: {question: counts, max_contributions: 2}\n"
        "  top: {question: top-k, top: 1}\n"
        f"output: {{path: '{store.root}/answers'}}\naccount: {{ledger: none}}\n"
    )
    assert cli.main(["run", "m.yaml", *store.options]) == 0
    assert sorted(name for name in store.files.names() if name.startswith("answers/")) == [
        "answers/_guarantee.json",
        "answers/pages.csv",
        "answers/pages.csv.guarantee.json",
        "answers/top.csv",
        "answers/top.csv.guarantee.json",
    ]
    assert cli.main(["report", f"{store.root}/answers/pages.csv", "--output", "page.html"]) == 0
    assert "tea" in (tmp_path / "page.html").read_text()
