"""Commands that show results: `report` makes a page, `serve` keeps it up to date, `plot` draws, `explain` says."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shutil
import textwrap
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from privstream.mechanisms.privacy.guarantee import guarantee_of
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.locations import BESIDE, END, GUARANTEE
from privstream.pipelines.model.question import loaded
from privstream.pipelines.promise import promise_path
from privstream.pipelines.report import result as results
from privstream.pipelines.stores import check_destination, whole_file
from privstream.pipelines.terminal import printable, say, spinner

TITLE = "Differentially private results"
HOST, PORT = "127.0.0.1", 8080
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def report(paths: list[str], output: str, title: str) -> None:
    """Read the results, make the page, and write it."""

    def page() -> bytes:
        whole = results.monitor_promise(paths[0]) if len(paths) == 1 else None
        shown = [path for one in paths for path in results.results_in(one) or [one]]
        return str(loaded("report.page.page_of")(shown, title=title, whole=whole)).encode()

    size = _made(output, (".html",), page)
    say(f"report: {output} ({size / 1e6:.1f} MB)")


def plot(path: str, output: str) -> None:
    """Read the result and write its chart."""

    def picture() -> bytes:
        if (found := results.results_in(path)) and path not in found:
            raise ValueError(f"RESULT must be one result, such as {found[0]}, got the folder {path}")
        chart = results.read_result(path).chart()
        return bytes(chart.png() if output.lower().endswith(".png") else chart.svg().encode())

    _made(output, (".png", ".svg"), picture)
    say(f"picture: {output}")


def _made(path: str, endings: tuple[str, ...], make: Callable[[], bytes]) -> int:
    """Write what is made of results into a file with one of these endings, and return its size."""
    try:
        if not path.lower().endswith(endings):
            raise ValueError(f"--output must end in {' or '.join(endings)}, got {path}")
        check_destination(path)
        with spinner("reading and drawing results"):
            content = make()
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(str(error)) from error
    try:
        with whole_file(path) as stream:
            stream.write(content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from error
    return len(content)


def explain(path: str) -> None:
    """Print all that a guarantee file says, in sentences."""
    path = path.removesuffix(BESIDE)
    path = (os.path.dirname(path) or ".") if os.path.basename(path) == GUARANTEE else path
    try:
        if (promise := results.monitor_promise(path)) is not None:
            sections = results.explanation(promise.content, guarantee_of(promise.content))
        else:
            found = results.read_promise(path)
            promise, sections = found.promise, found.explanation
    except results.UNREADABLE as error:
        rule = f"RESULT must be one that privstream wrote ({type(error).__name__})"
        raise UsageError(str(error) if isinstance(error, ValueError) else rule) from None  # a ValueError names the file
    width = max(40, shutil.get_terminal_size().columns)
    for title, sentences in sections.items():
        print(printable(title))
        for sentence in sentences:
            print(textwrap.fill(printable(sentence), width, initial_indent="  ", subsequent_indent="    "))
    print(f"All of it, as JSON: {printable(promise.path)}")


class LivePage:
    """The report of a folder as its files are now: see `result.results_in`."""

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
        found = hashlib.blake2b(digest_size=8)
        for path in results.results_in(self._folder):
            shown = results.files_of(path)[-results.MOST_FILES :]
            for file in (promise_path(path), os.path.join(path, END), *shown):
                with suppress(OSError):
                    stamp = os.stat(file)
                    found.update(repr((file, stamp.st_mtime_ns, stamp.st_size, stamp.st_ino)).encode())
        return found.hexdigest()

    def page(self) -> str:
        """Return the page, made again if anything has changed."""
        with self._alone:
            now, whole = self.version(), None
            if self._made[0] != now:
                with suppress(ValueError):  # a damaged file of a monitor hides nothing else
                    whole = results.monitor_promise(self._folder)
                page, shown = loaded("report.page.page_of"), results.results_in(self._folder)
                self._made = now, page(shown, title=f"{TITLE}, live", whole=whole, live=now)
            return self._made[1]


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
    except (OSError, OverflowError) as error:
        raise ValueError(f"port must be free, got {port} ({error})") from None


def serve(folder: str, port: int) -> None:
    """Check the options, listen, and answer until interrupted."""
    try:
        if not os.path.isdir(folder):
            raise ValueError(f"FOLDER must be a folder that exists, got {folder}")
        server = listen(LivePage(folder), port)
    except ValueError as error:
        raise UsageError(str(error)) from error
    say(f"live page of {folder}: http://{HOST}:{server.server_port}/ (Ctrl-C ends it)")
    with server:
        server.serve_forever()


RESULT = "output of a command, a file or a folder, with its guarantee file; or a "
REPORT = Command(
    description="Makes one page of results: of each a sentence, a picture and a short table; all rows, what is "
    "guaranteed and how accurate numbers are can be opened. The page needs no network.",
    options={
        "paths": {
            "nargs": "+",
            "metavar": "RESULT",
            "help": f"{RESULT}folder of them, such as that of a monitor",
        },
        "--output": {"required": True, "metavar": "PATH", "help": "the page; ends in .html"},
        "--title": {"default": TITLE, "metavar": "TEXT", "help": f"heading (default: {TITLE})"},
    },
    run=report,
)
PLOT = Command(
    description="Draws the chart of a result.",
    options={
        "path": {"metavar": "RESULT", "help": f"{RESULT}view of a monitor"},
        "--output": {"required": True, "metavar": "PATH", "help": "the picture; ends in .png or .svg"},
    },
    run=plot,
)
EXPLAIN = Command(
    description="Explains a result from its guarantee file: what is protected, how the numbers were made and how "
    "accurate they are, what limits drop, how items are discovered, and what each column means.",
    options={"path": {"metavar": "RESULT", "help": "output of a command, or its guarantee file"}},
    run=explain,
)
SERVE = Command(
    description="Shows the report of a folder as a page that follows running jobs. It listens on this machine alone.",
    options={
        "folder": {
            "metavar": "FOLDER",
            "help": "with results of commands and folders of streaming runs, or that of a monitor",
        },
        "--port": {"type": int, "default": PORT, "metavar": "N", "help": f"default: {PORT}; 0 for any that is free"},
    },
    run=serve,
)
