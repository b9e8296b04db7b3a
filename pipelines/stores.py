"""Stores beyond this machine, which Beam's filesystems reach, such as s3:// and hdfs://: what they need."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, BinaryIO

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

CLIENTS = {"s3": ("boto3", "s3"), "gs": ("google.cloud.storage", "gcs"), "hdfs": ("hdfs", "hdfs")}
"""Scheme -> the module without which Beam does not reach such a store, and the extra that brings it."""

SECRETS = {"s3_secret_access_key": "AWS_SECRET_ACCESS_KEY", "s3_session_token": "AWS_SESSION_TOKEN"}
"""Options of Beam that are secrets, and the environment variables in their place."""


def reach_stores(arguments: Sequence[str], options: PipelineOptions) -> None:
    """Let all paths of this process be reached as Beam's options say, from before there is a pipeline.

    Args:
        arguments: the options as they are given.
        options: what Beam has made of them.

    Raises:
        ValueError: one is a secret, which lists of processes and job servers would show.
    """
    for argument in arguments:
        name = argument.removeprefix("--").partition("=")[0]
        if argument.startswith("--") and name in SECRETS:
            raise ValueError(f"{name} must not be given, for others could read it: set {SECRETS[name]}, or a profile")
    FileSystems.set_options(options)


def check_store(path: str, option: str) -> None:
    """Check that Beam can reach the filesystem of a path at all.

    Raises:
        ValueError: naming the option, and the extra that is missing.
    """
    scheme = FileSystems.get_scheme(path)
    if scheme is None:
        return
    module, extra = CLIENTS.get(scheme, ("", ""))
    if module and not _installed(module):
        raise ValueError(f"{option} of {scheme}:// needs an extra: pip install 'privstream[{extra}]'")
    if FileSystems._pipeline_options is None:  # a command that takes no options of Beam
        FileSystems.set_options(PipelineOptions([]))
    try:
        FileSystems.get_filesystem(path)
    except ValueError as error:
        raise ValueError(f"{option} must be on a filesystem that Beam knows, got {path}: {error}") from None


def upload(stream: BinaryIO, path: str) -> None:
    """Write what is in a file of this machine as a new one beyond it."""
    if not stream.seek(0, os.SEEK_END) and FileSystems.get_scheme(path) == "s3":
        return _put_empty(path)
    stream.seek(0)
    with FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as remote:
        shutil.copyfileobj(stream, remote)


def _put_empty(path: str) -> None:
    """Make an object without bytes: Beam would complete an upload that has no part, which S3 refuses."""
    s3 = importlib.import_module("apache_beam.io.aws.s3io")
    bucket, key = s3.parse_s3_path(path)
    store: Any = FileSystems.get_filesystem(path)
    s3.S3IO(options=store._options).client.client.put_object(Bucket=bucket, Key=key, Body=b"")


def _installed(module: str) -> bool:
    """Tell whether a module can be imported; the packages around it may be missing, too."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
