"""`privstream serve`: the report of a folder, made again when its files change, for browsers of this machine."""

from __future__ import annotations

import ipaddress
import os
import threading
from contextlib import suppress
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from privstream.mechanisms import checks
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.locations import END, GUARANTEE
from privstream.pipelines.report.page import page_of
from privstream.pipelines.report.result import (
    BESIDE,
    is_rows,
    monitor_promise,
    newest,
    output_of,
    promise_path,
    results_of,
    stamp,
)
from privstream.pipelines.terminal import say

HOST, PORT, LAST_PORT = "127.0.0.1", 8080, 65_535
TITLE = "Differentially private results, live"
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LivePage:
    """The report of a folder as its files are now: see `results_in`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._alone = threading.Lock()
        self._made: tuple[str, str] = ("", "")

    def answer(self, path: str, host: str) -> tuple[int, str, str]:
        """Answer a request for a path, asked for by the name of a host: a status, a type, and a text."""
        if not is_local(host):  # else a page of somebody else, whose name points here, could read this one
            return 403, "text/plain", "Ask for this page at localhost or 127.0.0.1.\n"
        if path == "/version":
            return 200, "text/plain", self.version()
        return (200, "text/html", self.page()) if path == "/" else (404, "text/plain", "Not found.\n")

    def version(self) -> str:
        """Return what changes whenever a file of the page does."""
        paths = results_in(self._folder)
        files = [file for path in paths for file in (promise_path(path), os.path.join(path, END), *newest(path)[0])]
        stamps = repr([(file, stamp(file)) for file in files])
        return blake2b(stamps.encode(errors="surrogateescape"), digest_size=8).hexdigest()

    def page(self) -> str:
        """Return the page, made again if anything has changed."""
        with self._alone:
            now = self.version()
            if self._made[0] != now:
                whole = None
                with suppress(ValueError):  # a damaged file of a monitor hides nothing else
                    whole = monitor_promise(self._folder)
                self._made = now, page_of(results_in(self._folder), title=TITLE, whole=whole, live=now)
            return self._made[1]


def results_in(folder: str) -> list[str]:
    """Return the results of a folder: of a monitor, all that its guarantee file names, in that order.

    Else a result is a file with its guarantee file beside it, or a folder (this one, or one in it) with a guarantee
    file in it. Everything else is never opened.
    """
    with suppress(ValueError, OSError):
        if monitor_promise(folder) is not None:
            return [path for path in results_of(folder) if os.path.exists(path)]
    if os.path.isfile(os.path.join(folder, GUARANTEE)):
        return [folder]
    with suppress(OSError):
        return [path for name in sorted(os.listdir(folder)) if (path := _result(os.path.join(folder, name)))]
    return []


def _result(path: str) -> str:
    """Return the result that a path stands for; empty if for none."""
    rows = path.removesuffix(BESIDE)
    if rows != path and is_rows(rows) and stamp(path):
        return rows
    if os.path.basename(path)[0] in "._" or not stamp(os.path.join(path, GUARANTEE)):
        return ""
    with suppress(ValueError):
        return path if monitor_promise(path) is None else ""
    return path


def is_local(host: str) -> bool:
    """Tell whether a browser has asked by a name of this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def listen(page: LivePage, port: int) -> ThreadingHTTPServer:
    """Return a server on loopback.

    Raises:
        ValueError: the port is none, or not free.
    """
    if checks.integer("port", port, minimum=0) > LAST_PORT:
        raise ValueError(f"port must be <= {LAST_PORT:,}, got {port}")

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "privstream", ""

        def do_GET(self) -> None:
            """Send a page."""
            status, kind, text = page.answer(self.path, self.headers.get("Host", ""))
            body = text.encode()
            self.send_response(status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing: a line for each second helps nobody."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ValueError(f"port must be free, got {port} ({error.strerror})") from None


def run(folder: str, port: int) -> None:
    """Check the options, listen, and answer until interrupted."""
    try:
        folder = output_of(folder)
        if not os.path.isdir(folder):
            raise ValueError(f"FOLDER must be a folder that exists, got {folder}")
        server = listen(LivePage(folder), port)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error
    say(f"live page of {folder}: http://{HOST}:{server.server_port}/ (Ctrl-C ends it)")
    with server:
        server.serve_forever()


COMMAND = Command(
    description="Shows the report of a folder as a page that follows running jobs. It listens on this machine alone.",
    options={
        "folder": {
            "metavar": "FOLDER",
            "help": "with results of commands, and folders of streaming runs; or FILE.yaml, a monitor, for its folder",
        },
        "--port": {"type": int, "default": PORT, "metavar": "N", "help": f"default: {PORT}; 0 for any that is free"},
    },
    run=run,
)
