"""Files of this machine, and stores beyond it, which Beam's filesystems reach; Beam is loaded for these alone."""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from io import BufferedReader
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

if TYPE_CHECKING:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

SCHEME = re.compile(r"([a-zA-Z][-a-zA-Z0-9+.]*)://")

CLIENTS = {"s3": ("boto3", "s3"), "gs": ("google.cloud.storage", "gcs"), "hdfs": ("hdfs", "hdfs")}
"""Scheme -> the module without which Beam does not reach such a store, and the extra that brings it."""

SECRETS = {"s3_secret_access_key": "AWS_SECRET_ACCESS_KEY", "s3_session_token": "AWS_SESSION_TOKEN"}
"""Options of Beam that are secrets, and the environment variables in their place."""


def scheme_of(path: str) -> str | None:
    """Return the scheme of a path beyond this machine; None for a file of this machine."""
    found = SCHEME.match(path)
    return None if found is None else found[1]


def is_glob(path: str) -> bool:
    """Tell whether a path may stand for several files."""
    return any(sign in path for sign in "*?[")


def filesystems() -> type[FileSystems]:
    """Return Beam's filesystems."""
    from apache_beam.io.filesystems import FileSystems  # noqa: PLC0415 - late: files of this machine need no Beam

    return FileSystems


def exists(path: str) -> bool:
    """Tell whether there is a file or a folder."""
    return os.path.exists(path) if scheme_of(path) is None else bool(filesystems().exists(path))


def join(folder: str, name: str) -> str:
    """Return the path of a file in a folder."""
    return os.path.join(folder, name) if scheme_of(folder) is None else str(filesystems().join(folder, name))


class FileFacts(NamedTuple):
    """A file: its path, its size in bytes, and marks that show that it has changed.

    Marks begin with the time of its last change. On a disk they go on with what programs cannot set: the time of the
    last change of its description, and its number there.
    """

    path: str
    size: int
    marks: tuple[float, ...]


def facts_of(path: str) -> FileFacts:
    """Return what the filesystem says of a file."""
    if scheme_of(path) is None:
        found = os.stat(path)
        on_disk = os.major(found.st_dev) > 0  # on Linux; what servers and memory hold is on no device
        more = (found.st_ctime_ns, found.st_ino) if on_disk else ()
        return FileFacts(path, found.st_size, (found.st_mtime_ns, *more))
    return _described(filesystems().get_filesystem(path).metadata(path))


def _described(found: Any) -> FileFacts:
    return FileFacts(found.path, found.size_in_bytes, (found.last_updated_in_seconds,))


def matching(pattern: str) -> list[FileFacts]:
    """Return the files that a path or a glob matches, without folders of a store that has some, such as HDFS."""
    found = filesystems().match([pattern])[0].metadata_list
    if scheme_of(pattern) is None:
        return [facts_of(file.path) for file in found]
    folders = has_folders(pattern)
    return [_described(file) for file in found if not folders or file.size_in_bytes or not _is_folder(file.path)]


def has_folders(path: str) -> bool:
    """Tell whether the filesystem of a path knows folders, which stores of objects do not."""
    return bool(filesystems().get_filesystem(path).has_dirs())


def _is_folder(path: str) -> bool:
    """Tell a folder, which Beam describes as a file without bytes, from a file, which cannot be listed."""
    try:
        filesystems().match([f"{path}/*"])
    except OSError:
        return False
    return True


def opened(path: str) -> BufferedReader:
    """Open a file to be read, as it stands there."""
    if scheme_of(path) is None:
        return open(path, "rb")
    return cast("BufferedReader", filesystems().open(path, compression_type="uncompressed"))


def delete(path: str) -> None:
    """Delete a file."""
    if scheme_of(path) is None:
        os.remove(path)
    else:
        filesystems().delete([path])


def reach_stores(arguments: Sequence[str], options: PipelineOptions) -> None:
    """Let all paths be reached as Beam's options say; secrets are refused, which lists of processes would show."""
    for argument in arguments:
        name = argument.removeprefix("--").partition("=")[0]
        if argument.startswith("--") and name in SECRETS:
            raise ValueError(f"{name} must not be given, for others could read it: set {SECRETS[name]}, or a profile")
    filesystems().set_options(options)


def check_store(path: str, option: str) -> None:
    """Check that Beam can reach the filesystem of a path at all."""
    scheme = scheme_of(path)
    if scheme is None:
        return
    module, extra = CLIENTS.get(scheme, ("", ""))
    try:
        missing = bool(module) and find_spec(module) is None
    except ModuleNotFoundError:  # the packages around it
        missing = True
    if missing:
        raise ValueError(f"{option} of {scheme}:// needs an extra: pip install 'privstream[{extra}]'")
    if filesystems()._pipeline_options is None:  # a command that takes no options of Beam
        from apache_beam.options.pipeline_options import PipelineOptions  # noqa: PLC0415 - late, as all of Beam here

        filesystems().set_options(PipelineOptions([]))
    try:
        filesystems().get_filesystem(path)
    except ValueError as error:
        if scheme == "hdfs":
            needed = "--hdfs_host, --hdfs_port and --hdfs_user, of a command that takes options of Beam"
            raise ValueError(f"{option} of hdfs:// needs {needed}, got {path}") from None
        raise ValueError(f"{option} must be on a filesystem that Beam knows, got {path}: {error}") from None


def upload(stream: BinaryIO, path: str) -> None:
    """Write what is in a file of this machine as a new one beyond it."""
    if not stream.seek(0, os.SEEK_END) and scheme_of(path) == "s3":  # Beam would upload no part, which S3 refuses
        s3 = importlib.import_module("apache_beam.io.aws.s3io")
        bucket, key = s3.parse_s3_path(path)
        store: Any = filesystems().get_filesystem(path)
        s3.S3IO(options=store._options).client.client.put_object(Bucket=bucket, Key=key, Body=b"")
        return
    stream.seek(0)
    with filesystems().create(path, compression_type="uncompressed") as remote:
        shutil.copyfileobj(stream, remote)
