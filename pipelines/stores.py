"""Files of this machine, and stores beyond it, which Beam's filesystems reach; Beam is loaded for these alone.

What is written appears whole or not at all.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import importlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from privstream.pipelines.terminal import json_text

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


def imported(module: str, extra: str, what: str) -> Any:
    """Import a module that an extra installs; `what` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(f"{what} needs an extra: pip install 'privstream[{extra}]'") from None


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
    """Return what the filesystem says of a file.

    Raises:
        OSError: there is none; or it is a pipe, which may give nothing, or a device, which may have no end.
    """
    if scheme_of(path) is None:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", path)
        on_disk = os.major(found.st_dev) > 0  # on Linux; what servers and memory hold is on no device
        more = (found.st_ctime_ns, found.st_ino) if on_disk else ()
        return FileFacts(path, found.st_size, (found.st_mtime_ns, *more))
    return _described(filesystems().get_filesystem(path).metadata(path))


def _described(found: Any) -> FileFacts:
    return FileFacts(found.path, found.size_in_bytes, (found.last_updated_in_seconds,))


def listed(pattern: str) -> list[FileFacts]:
    """Return the files beyond this machine that a path, a folder or a glob stands for."""
    found = _matching(pattern) if is_glob(pattern) or not pattern.endswith("/") else []
    if found or is_glob(pattern):
        return found
    if has_folders(pattern) and not exists(pattern):
        return []  # which it would refuse to list
    found = _matching(f"{pattern.rstrip('/')}/*")
    return [file for file in found if not file.path.rpartition("/")[2].startswith((".", "_"))]


def _matching(pattern: str) -> list[FileFacts]:
    """Return the files that a path or a glob matches, without folders of a store that has some, such as HDFS."""
    found = filesystems().match([pattern])[0].metadata_list
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


def reason(error: Exception) -> str:
    """Say in a word or two why a file cannot be used."""
    return str(getattr(error, "strerror", None) or type(error).__name__)


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
    if scheme in CLIENTS:
        imported(*CLIENTS[scheme], f"{option} of {scheme}://")
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


PARTIAL = ".partial"


def move_file(partial: str, path: str) -> None:
    """Give a complete file its name, in place of what has that name.

    In a store of objects, such as S3, this copies the object, which is there as a whole or not at all, and overwrites
    at once. Other filesystems refuse to overwrite, and what was there is removed first.
    """
    if scheme_of(path) is None:
        os.replace(partial, path)
        return
    if has_folders(path) and exists(path):
        delete(path)
    filesystems().rename([partial], [path])


def _move_new(partial: str, path: str) -> None:
    """Give a complete file its name, if no file has it."""
    if scheme_of(path) is None:
        os.link(partial, path)  # unlike a rename, it fails if another worker has just been here
        os.remove(partial)
    else:
        filesystems().rename([partial], [path])


@contextmanager
def whole_file(
    path: str, *, owner_only: bool = False, finish: Callable[[str, str], None] = move_file
) -> Iterator[BinaryIO]:
    """Write a file under a name of its own in the same folder, and rename it when it is complete.

    If the block fails, a file that was there before stays as it was. An `owner_only` file is, from its first byte on,
    for its owner alone where the file system is that of this machine. Beyond this machine it is written when the block
    has ended well: a stream that is closed early would be a whole object there.
    """
    folder, name = os.path.split(path)
    partial = os.path.join(folder, f".{name}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        if scheme_of(path) is None:
            flags, mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if owner_only else 0o666
            with open(os.open(partial, flags, mode), "wb") as stream:
                yield stream
        else:
            with tempfile.TemporaryFile() as held:
                yield held
                upload(held, partial)
        finish(partial, path)
    except BaseException:
        with suppress(OSError):
            delete(partial)
        raise


def write_once(path: str, data: bytes, *, owner_only: bool = False) -> str:
    """Write a file, whole, unless there is one of that name: what was published first stays.

    Returns:
        `written`; or `repeated` if there is one with the same bytes, `refused` if there is one with others.
    """
    with suppress(FileExistsError):
        if not exists(path):
            with whole_file(path, owner_only=owner_only, finish=_move_new) as stream:
                stream.write(data)
            return "written"
    with opened(path) as stored:
        return "repeated" if stored.read() == data else "refused"


def write_json(path: str, value: Any) -> None:
    """Write a value as a JSON file, whole or not at all; NaN and infinity are refused."""
    with whole_file(path) as stream:
        stream.write(json_text(value, indent=2).encode() + b"\n")


def fingerprint(path: str) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_destination(path: str, option: str = "--output") -> None:
    """Check before a run that a file can be written, and remove what a killed run has left of it."""
    if not path:
        raise ValueError(f"{option} must not be empty")
    check_store(path, option)
    if scheme_of(path) is None:
        if os.path.isdir(path):
            raise ValueError(f"{option} must be a file, but {path} is a folder")
        folder, name = os.path.split(path)
        if not os.path.isdir(folder or os.curdir):
            raise ValueError(f"{option} must be in a folder that exists: there is no folder {folder}")
        for stale in glob.glob(f".{glob.escape(name)}.*{PARTIAL}", root_dir=folder or None):
            with suppress(OSError):
                os.remove(os.path.join(folder, stale))
    try:
        with whole_file(path, owner_only=True, finish=lambda partial, _: delete(partial)) as stream:
            stream.write(b"\n")
    except Exception as error:  # each store has its own
        raise ValueError(f"{option} must be writable: {path} ({reason(error)})") from None


def check_new(path: str, option: str = "--output") -> None:
    """Refuse a file that is there already."""
    if exists(path):
        raise ValueError(f"{option} must be a new file, but {path} exists; --overwrite replaces it")


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
