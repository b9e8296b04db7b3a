"""`privstream serve`: the report of a folder, made again when its files change, for browsers of this machine."""

from __future__ import annotations

import argparse
import importlib
import ipaddress
import os
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from privstream.mechanisms import checks
from privstream.pipelines.accounts.ledger import Ledger
from privstream.pipelines.command import Command, UsageError
from privstream.pipelines.report.cost import Accounts
from privstream.pipelines.report.result import Result, ledger_of, monitor_promise, output_of
from privstream.pipelines.report.section import section
from privstream.pipelines.serve.folder import WatchedFolder
from privstream.pipelines.terminal import say

Made = TypeVar("Made")
HOST, PORT, LAST_PORT = "127.0.0.1", 8080, 65_535
TITLE = "Differentially private results, live"
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NOT_IN_LEDGER = "The ledger of this page does not have the run of this result."


class Answer(NamedTuple):
    """A status, the type of a body, and the body."""

    status: int
    kind: str
    body: str


class LivePage:
    """The report of a folder as its files are now.

    Args:
        folder: whose results are shown.
        accounts: the ledger of their runs, or None.
        traceback: whether the terminal shows where errors come from; that may quote rows.
    """

    def __init__(self, folder: str, accounts: Accounts | None = None, *, traceback: bool = False) -> None:
        self._folder, self._accounts, self._traceback = WatchedFolder(folder), accounts, traceback
        self._alone = threading.Lock()
        self._made: tuple[str, str] = ("", "")

    def answer(self, path: str, host: str) -> Answer:
        """Answer a request for a path, asked for by the name of a host."""
        if not is_local(host):  # else a page of somebody else, whose name points here, could read this one
            return Answer(403, "text/plain", "Ask for this page at localhost or 127.0.0.1.\n")
        if path == "/version":
            return Answer(200, "text/plain", self.version())
        return Answer(200, "text/html", self.page()) if path == "/" else Answer(404, "text/plain", "Not found.\n")

    def version(self) -> str:
        """Return what changes when the page does."""
        ledger = "" if self._accounts is None else self._accounts.head()
        return self._folder.version(self._folder.paths()) + ledger

    def page(self) -> str:
        """Return the page, made again if anything has changed."""
        with self._alone:
            now = self.version()
            if self._made[0] != now:
                self._made = now, self._render(now)
            return self._made[1]

    def _render(self, now: str) -> str:
        """Make the page."""
        paths = self._folder.paths()
        self._folder.forget(paths)
        sections = [found for path in paths if (found := self._section(path)) is not None]
        notes = [] if paths else ["No results yet. They appear here when a command has written them."]
        if (unreadable := len(paths) - len(sections)) > 0:
            notes.append(f"{unreadable:,} results cannot be read now: incomplete, or of another version.")
        try:
            monitor = monitor_promise(self._folder.path)
        except ValueError:
            monitor = None
        datasets = sorted({one["dataset"] for one in sections} - {None})
        accounts = self._accounts
        render = importlib.import_module("privstream.pipelines.report.page").render  # other commands need no templates
        page: str = render(
            title=TITLE,
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            version=version("privstream"),
            sections=sections,
            together=[] if monitor is None else [monitor.number("guarantee")],
            costs=None if accounts is None else self._try(lambda: accounts.costs(datasets)),
            notes=notes,
            live=now,
        )
        return page

    def _section(self, path: str) -> dict[str, Any] | None:
        """Return what is shown of a result, None if it cannot be read."""
        found = self._try(lambda: self._folder.read(path))
        if found is None:
            return None
        result, notes = found
        made = self._try(lambda: self._words(result, notes))
        return None if made is None else made | {"notes": notes}

    def _words(self, result: Result, notes: list[str]) -> dict[str, Any]:
        """Return the section of a result, without its ledger where that does not have it."""
        try:
            return section(result, self._accounts)
        except ValueError:
            notes.append(NOT_IN_LEDGER)
            return section(result, None)

    def _try(self, make: Callable[[], Made]) -> Made | None:
        """Return what is made; None if that fails, since what is wrong with one result must not hide the others."""
        try:
            return make()
        except Exception as error:
            if self._traceback:
                say("".join(traceback.format_exception(error)).rstrip())
            return None


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
            answer = page.answer(self.path, self.headers.get("Host", ""))
            body = answer.body.encode()
            self.send_response(answer.status)
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing: a line for each second helps nobody."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ValueError(f"port must be free, got {port} ({error.strerror})") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    words = "with results of commands, and folders of streaming runs; or FILE.yaml, a monitor, for its folder"
    parser.add_argument("folder", metavar="FOLDER", help=words)
    words = f"default: {PORT}; 0 for any that is free"
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=words)
    parser.add_argument("--ledger", metavar="PATH", help="file in which the runs are recorded: shows what is spent")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Check the options, listen, and answer until interrupted."""
    try:
        ledger, folder = arguments.ledger or ledger_of(arguments.folder), output_of(arguments.folder)
        if not os.path.isdir(folder):
            raise ValueError(f"FOLDER must be a folder that exists, got {folder}")
        accounts = Accounts.of(ledger, None)
        if accounts is not None:
            Ledger(accounts.path).contents()
        server = listen(LivePage(folder, accounts, traceback=arguments.traceback), arguments.port)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error
    say(f"live page of {folder}: http://{HOST}:{server.server_port}/ (Ctrl-C ends it)")
    with server:
        server.serve_forever()


COMMAND = Command(
    description="Shows the report of a folder as a page that follows running jobs. It listens on this machine alone.",
    add_arguments=add_arguments,
    run=run,
)
