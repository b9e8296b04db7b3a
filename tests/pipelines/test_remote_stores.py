"""Files on a store beyond this machine: S3, as a local server speaks it."""

import gzip
import hashlib
import io
import json
import logging
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from apache_beam.io.filesystem import BeamIOError, FileMetadata, MatchResult
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.hadoopfilesystem import HadoopFileSystem
from apache_beam.options.pipeline_options import PipelineOptions
from privstream.pipelines import cli, stores
from privstream.pipelines.sinks.row_files import check_destination, fingerprint, move_file, whole_file, write_once
from privstream.pipelines.sources.event_files import InputFileError
from privstream.pipelines.sources.found_files import match_files

boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto.server")

HEADER = "user,item,time\n"
RUN = ["counts", "--window", "1d", "--start", "2024-01-01", "--end", "2024-01-03", "--epsilon", "1", "--delta", "1e-6",
       "--max_contributions", "2"]  # fmt: skip
BUCKET = "events"


def lines(first: int, last: int) -> str:
    return HEADER + "".join(f"u{n},tea,2024-01-0{1 + n % 2}T12:00:00Z\n" for n in range(first, last))


@pytest.fixture(scope="module")
def server():
    """An S3 server on loopback, whose address and key are in the environment, as they are for a user."""
    started = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    given = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "xyzzy of nobody",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        shared = boto3.session.Session()  # each one reads what all services are, and Beam makes one for each call
        patch.setattr(boto3.session, "Session", lambda: shared)
        patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
        stores.reach_stores([], PipelineOptions([]))
        yield
    started.stop()


@pytest.fixture
def s3(server):
    """A bucket with a folder of files, one of them compressed, and with what is no file of events."""
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    contents = {
        "in/one.csv": lines(0, 300).encode(),
        "in/two.csv.gz": gzip.compress(lines(300, 600).encode()),
        "in/_SUCCESS": b"",
        "in/older/three.csv": lines(600, 900).encode(),
    }
    for key, content in contents.items():
        client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def names() -> list[str]:
        return [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]

    def read(key: str) -> bytes:
        return client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    yield SimpleNamespace(client=client, names=names, read=read)
    for key in names():
        client.delete_object(Bucket=BUCKET, Key=key)
    client.delete_bucket(Bucket=BUCKET)


@pytest.mark.parametrize("pattern", ["s3://events/in", "s3://events/in/", "s3://events/in/*.csv*"])
def test_a_folder_or_a_glob_of_a_store_is_as_one_of_this_machine(pattern, s3, read_all):
    assert [file.path for file in match_files(pattern)] == ["s3://events/in/one.csv", "s3://events/in/two.csv.gz"]
    assert {row["user"] for row in read_all(pattern).rows} == {f"u{n}" for n in range(600)}


def test_what_is_not_there_is_named(s3):
    for pattern in ("s3://events/none.csv", "s3://events/none", "s3://nobody/in"):
        with pytest.raises(InputFileError, match=f"nothing matches {pattern}"):
            match_files(pattern)
    with pytest.raises(ValueError, match=r"--output must be writable: s3://nobody/rows\.csv"):
        check_destination("s3://nobody/rows.csv")


def test_a_folder_of_a_store_that_has_folders(monkeypatch):
    """HDFS knows folders, and Beam refuses to describe one as a file."""
    asked = []

    def match(patterns: list[str]) -> list[MatchResult]:
        asked.extend(patterns)
        if patterns == ["hdfs://shop/in"]:
            raise BeamIOError("no file")
        files = [FileMetadata(f"hdfs://shop/in/{name}", 5) for name in ("b.csv", "_SUCCESS", "a.csv", ".c.csv")]
        return [MatchResult(patterns[0], files)]

    monkeypatch.setattr(stores, "find_spec", lambda _: True)
    monkeypatch.setattr(FileSystems, "match", match)
    monkeypatch.setattr(FileSystems, "get_filesystem", lambda _: HadoopFileSystem)
    monkeypatch.setattr(FileSystems, "split", lambda path: tuple(path.rsplit("/", 1)))
    assert [file.path[-5:] for file in match_files("hdfs://shop/in")] == ["a.csv", "b.csv"]
    assert asked == ["hdfs://shop/in", "hdfs://shop/in/*"]


def test_files_appear_whole_or_not_at_all(s3):
    path = "s3://events/out/rows.csv"
    check_destination(path)
    with pytest.raises(KeyError), whole_file(path) as stream:
        stream.write(b"half")
        assert not [key for key in s3.names() if key.startswith("out/")]
        raise KeyError
    assert not [key for key in s3.names() if key.startswith("out/")]
    for content in (b"first", b"", b"second" * 2_000_000):  # more than a part of an upload
        with whole_file(path, private=True) as stream:
            stream.write(content)
        assert s3.read("out/rows.csv") == content and [key for key in s3.names() if "out/" in key] == ["out/rows.csv"]
    assert fingerprint(path) == hashlib.sha256(content).hexdigest()


def test_what_was_published_first_stays(s3):
    for content, told in ((b"", "written"), (b"", "repeated"), (b"other", "refused")):
        assert write_once("s3://events/out/_END", content) == told
    assert s3.read("out/_END") == b""


def test_an_object_is_overwritten_at_once_and_never_removed_first(s3, monkeypatch):
    monkeypatch.setattr(FileSystems, "delete", lambda _: pytest.fail("removed"))
    stores.upload(io.BytesIO(b"old"), "s3://events/out/rows.csv")
    stores.upload(io.BytesIO(b"new"), "s3://events/out/.rows.csv.partial")
    move_file("s3://events/out/.rows.csv.partial", "s3://events/out/rows.csv")
    assert s3.read("out/rows.csv") == b"new"


@pytest.mark.parametrize("option", ["--s3_secret_access_key=abc", "--s3_session_token"])
def test_secrets_are_no_options(option, capsys):
    words = [option] if "=" in option else [option, "abc"]
    assert cli.main([*RUN, "--input", "s3://events/in", "--output", "s3://events/out/rows.csv", *words]) == 2
    told = capsys.readouterr().err
    assert "must not be given, for others could read it: set AWS_SE" in told and "abc" not in told


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("gs", "gcs"), ("hdfs", "hdfs")])
def test_a_client_that_is_not_installed_is_named(scheme, extra, monkeypatch, capsys):
    monkeypatch.setattr(stores, "find_spec", lambda _: None)
    assert cli.main([*RUN, "--input", f"{scheme}://events/in", "--output", "rows.csv"]) == 2
    assert f"--input of {scheme}:// needs an extra: pip install 'privstream[{extra}]'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_from_store_to_store(s3, tmp_path, capsys):
    (tmp_path / "key").write_text("0123456789abcdef" * 2)
    (tmp_path / "key").chmod(0o600)
    command = [*RUN, "--input", "s3://events/in", "--noise_key_file", str(tmp_path / "key")]
    sent = ["--output", "s3://events/out/rows.parquet", "--dead_letter", "s3://events/private/letters.jsonl"]
    assert cli.main([*command, *sent]) == 0
    assert sorted(key for key in s3.names() if not key.startswith("in/")) == [
        "out/rows.parquet",
        "out/rows.parquet.guarantee.json",
        "private/letters.jsonl",
    ]
    assert s3.read("private/letters.jsonl") == b""  # nothing could not be used
    assert json.loads(s3.read("out/rows.parquet.guarantee.json"))["guarantee"]["epsilon"] == 1
    found = pq.read_table(io.BytesIO(s3.read("out/rows.parquet"))).to_pylist()
    assert [row["item"] for row in found] == ["tea"] * 2 and all(abs(row["count"] - 300) < 60 for row in found)
    assert cli.main([*command, *sent]) == 2
    assert "rows.parquet exists; --overwrite replaces it" in capsys.readouterr().err
    assert cli.main([*command, *sent, "--overwrite"]) == 0
    told = capsys.readouterr().err
    assert "a repetition, which costs nothing more" in told and "xyzzy" not in told
    s3.client.put_object(Bucket=BUCKET, Key="in/one.csv", Body=lines(0, 301).encode())
    assert cli.main([*command, *sent, "--overwrite"]) == 0
    assert "a release about data set" in capsys.readouterr().err  # other contents are other data


@pytest.mark.slow
def test_results_of_a_store_are_reported_and_a_monitor_writes_into_one(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(
        "data: {input: 's3://events/in'}\nwindow: 1d\nstart: 2024-01-01\nend: 2024-01-03\nmax_contributions: 2\n"
        "privacy: {epsilon: 1, delta: 1e-6}\nquestions:\n  pages: {question: counts}\n"
        "  top: {question: top-k, top: 1}\n"
        "output: {folder: 's3://events/answers'}\nledger: none\n"
    )
    assert cli.main(["run", "m.yaml"]) == 0
    assert sorted(key for key in s3.names() if key.startswith("answers/")) == [
        "answers/_guarantee.json",
        "answers/pages.csv",
        "answers/pages.csv.guarantee.json",
        "answers/top.csv",
        "answers/top.csv.guarantee.json",
    ]
    assert cli.main(["report", "s3://events/answers/pages.csv", "--output", "page.html"]) == 0
    assert "tea" in (tmp_path / "page.html").read_text()
