"""Files that appear whole or not at all."""

import glob
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from privstream.pipelines.terminal import json_text

PARTIAL = ".partial"


def check_destination(path: str, option: str = "--output") -> None:
    """Check before a run that a file can be written, and remove what a killed run has left of it.

    Raises:
        ValueError: with the option's name and the path.
    """
    if not path:
        raise ValueError(f"{option} must not be empty")
    if FileSystems.get_scheme(path) is not None:
        try:
            FileSystems.get_filesystem(path)
        except ValueError as error:
            raise ValueError(f"{option} must be on a filesystem that Beam knows, got {path}: {error}") from None
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise ValueError(f"{option} must be a file, but {path} is a folder")
    if not os.path.isdir(folder):
        raise ValueError(f"{option} must be in a folder that exists: there is no folder {folder}")
    for stale in glob.glob(_partial(glob.escape(path), "*")):
        with suppress(OSError):
            os.remove(stale)
    probe = _partial(path, secrets.token_hex(8))
    try:
        with open(probe, "xb"):
            pass
        os.remove(probe)
    except OSError as error:
        raise ValueError(f"{option} must be writable: {folder}: {error.strerror}") from None


def check_new(path: str, option: str = "--output") -> None:
    """Refuse a file that is there already.

    Raises:
        ValueError: with the option's name and the path.
    """
    if FileSystems.exists(path):
        raise ValueError(f"{option} must be a new file, but {path} exists; --overwrite replaces it")


@contextmanager
def whole_file(path: str, *, private: bool = False) -> Iterator[BinaryIO]:
    """Write a file under a name of its own in the same folder, and rename it when it is complete.

    If the block fails, a file that was there before stays as it was. A `private` file, from its first byte on, is for
    its owner alone where the file system is that of this machine.
    """
    partial = _partial(path, secrets.token_hex(8))
    try:
        with _create(partial, private) as stream:
            yield stream
            stream.flush()
        if FileSystems.get_scheme(path) is None:
            os.replace(partial, path)
        else:
            _replace(partial, path)
    except BaseException:
        with suppress(OSError, BeamIOError):
            FileSystems.delete([partial])
        raise


def write_once(path: str, data: bytes, *, private: bool = False) -> str:
    """Write a file, whole, unless there is one of that name: what was published first stays.

    Args:
        path: where, on any of Beam's filesystems.
        data: what to write.
        private: whether it is for its owner alone, as in `whole_file`.

    Returns:
        `written`; or `repeated` if there is one with the same bytes, `refused` if there is one with others.
    """
    if FileSystems.exists(path):
        return _compare(path, data)
    partial = _partial(path, secrets.token_hex(8))
    try:
        with _create(partial, private) as stream:
            stream.write(data)
        if FileSystems.get_scheme(path) is not None:
            FileSystems.rename([partial], [path])
            return "written"
        try:
            os.link(partial, path)  # unlike a rename, it fails if another worker has just been here
        except FileExistsError:
            return _compare(path, data)
        return "written"
    finally:
        with suppress(OSError, BeamIOError):
            FileSystems.delete([partial])


def write_json(path: str, value: Any) -> None:
    """Write a value as a JSON file, whole or not at all; NaN and infinity are refused."""
    text = json_text(value, indent=2)
    with whole_file(path) as stream:
        stream.write(text.encode() + b"\n")


def fingerprint(path: str) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        found = hashlib.sha256()
        while data := stream.read(1 << 20):
            found.update(data)
    return found.hexdigest()


def _create(path: str, private: bool) -> BinaryIO:
    """Open a new file for writing; a `private` one can be read by its owner alone."""
    if private and FileSystems.get_scheme(path) is None:
        return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    stream: BinaryIO = FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)
    return stream


def _partial(path: str, token: str) -> str:
    """Return the name under which a file is written."""
    folder, name = FileSystems.split(path) if os.path.dirname(path) else ("", path)
    return FileSystems.join(folder, f".{name}.{token}{PARTIAL}") if folder else f".{name}.{token}{PARTIAL}"


def _compare(path: str, data: bytes) -> str:
    """Say how a file that is there compares."""
    with FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED) as stream:
        return "repeated" if stream.read() == data else "refused"


def _replace(partial: str, path: str) -> None:
    """Rename on a filesystem that may refuse to overwrite."""
    if FileSystems.exists(path):
        FileSystems.delete([path])
    FileSystems.rename([partial], [path])
