"""The application that answers browsers, and who may see what."""

from __future__ import annotations

import argparse
import base64
import binascii
import hmac
import importlib
import ipaddress
import json
import os
import re
import socket
import stat
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from wsgiref.types import StartResponse, WSGIEnvironment

from privstream.mechanisms import checks
from privstream.pipelines.report.page import PACKAGE as REPORT
from privstream.pipelines.report.page import text_file
from privstream.pipelines.serve.page import PACKAGE, BusyError, Page
from privstream.pipelines.terminal import say

LAST_PORT = 65_535
LEAST_LETTERS = 16
MOST_BYTES = 1024
LOCAL_NAME = "localhost"
"""By which, or by an address of loopback, a browser of this machine asks. A page of somebody else whose name points
here has another one."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a request must have.

    Attributes:
        local: whether the server listens on loopback alone.
        token: of those who may see results; None if all may who can connect.
        operator_token: of those who may see the health of jobs; None if nobody may.
    """

    local: bool
    token: bytes | None
    operator_token: bytes | None

    def __post_init__(self) -> None:
        """Refuse what would show too much.

        Raises:
            ValueError: naming the option.
        """
        if not self.local and self.token is None:
            raise ValueError(
                "token_file must be given when host is not loopback: others could see the results. Make one with "
                "openssl rand -hex 32 > token && chmod 600 token"
            )
        if not self.local and self.operator_token is not None:
            raise ValueError(
                "operator_token_file must not be given when host is not loopback: the health of a job is exact, and "
                "this connection is not encrypted. Listen on loopback, behind ssh -L or a proxy with TLS"
            )
        if self.token is not None and self.token == self.operator_token:
            raise ValueError("operator_token_file must have another token than token_file")

    def accepts_host(self, host: str) -> bool:
        """Tell whether a page may be asked for by this name: on loopback by a local one; else the token decides."""
        if not self.local:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name == LOCAL_NAME or ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def accepts(self, authorization: str, *, operator: bool) -> bool:
        """Tell whether a request with this header may see a page for all, or one for operators."""
        if operator:
            return self.operator_token is not None and _is(authorization, self.operator_token)
        tokens = [token for token in (self.token, self.operator_token) if token is not None]
        return self.token is None or any(_is(authorization, token) for token in tokens)


def is_loopback(host: str) -> bool:
    """Tell whether a server at this host is reached from this machine alone.

    Raises:
        ValueError: there is no such host.
    """
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        raise ValueError(f"host must be a name or an address of this machine, got {host!r}") from None
    return all(ipaddress.ip_address(str(one).partition("%")[0]).is_loopback for one in found)


def read_token(option: str, path: str | None) -> bytes | None:
    """Return the token in a file, or None without a file.

    Raises:
        ValueError: naming the option; never the token.
    """
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{option} must be a readable file, got {path} ({error.strerror})") from None
    if mode & (stat.S_IRWXO | stat.S_IRWXG):
        raise ValueError(f"{option} must be readable by its owner alone, got {path} with mode {mode:04o}: chmod 600")
    token = content.strip()
    if len(token) < LEAST_LETTERS or len(content) > MOST_BYTES or not _is_word(token):
        raise ValueError(
            f"{option} must have one token of {LEAST_LETTERS} to {MOST_BYTES:,} letters and digits, without spaces: "
            f"openssl rand -hex 32 > {path}"
        )
    return token


def _is_word(token: bytes) -> bool:
    """Tell whether a token can be typed."""
    return all(33 <= letter <= 126 for letter in token)


def _is(authorization: str, token: bytes) -> bool:
    """Tell whether a header has a token, as the password of any name (the browser asks for both)."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() != "basic":
        return False
    try:
        given = base64.b64decode(value, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(given, token)


HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
STATIC = {"/live.js": "text/javascript; charset=utf-8", "/live.css": "text/css; charset=utf-8"}
SHARED = {"/report.js": "text/javascript; charset=utf-8", "/report.css": "text/css; charset=utf-8"}
OPERATOR = "/operator"

HEADERS = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]
"""Of every answer: the browser runs nothing but the scripts of this server, and no other page reads or embeds it."""

PLACE = re.compile(r"/results/([0-9a-f]{16})(?:/pictures/([0-9]{1,3}))?")


class Answer(NamedTuple):
    """A status line, the type of a body, and the body."""

    status: str
    type: str
    body: str


OK = "200 OK"
NOT_FOUND = Answer("404 Not Found", TEXT, "There is no such page.\n")
WRONG_HOST = Answer(
    "403 Forbidden", TEXT, "Ask for this page at localhost or 127.0.0.1; a proxy in front must send such a Host.\n"
)
NO_TOKEN = Answer("401 Unauthorized", TEXT, "A token is required, as the password of any name.\n")
NOT_A_READ = Answer("405 Method Not Allowed", TEXT, "This page can only be read: GET or HEAD.\n")
BUSY = Answer("503 Service Unavailable", TEXT, "This is not ready yet; ask again in a second.\n")
FAILED = Answer("500 Internal Server Error", TEXT, "This cannot be shown; the server's terminal names the error.\n")


def send(answer: Answer, environ: WSGIEnvironment, start_response: StartResponse, realm: str) -> Iterable[bytes]:
    """Send an answer; where a token is missing, browsers ask for that of a realm."""
    body = answer.body.encode()
    headers = [("Content-Type", answer.type), ("Content-Length", str(len(body))), *HEADERS]
    if answer is NO_TOKEN:
        headers.append(("WWW-Authenticate", f'Basic realm="privstream {realm}", charset="UTF-8"'))
    if answer is NOT_A_READ:
        headers.append(("Allow", "GET, HEAD"))
    start_response(answer.status, headers)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


class App:
    """Answers requests.

    Args:
        page: what there is to see.
        access: who may see it.
        traceback: whether the terminal shows where errors come from; that may quote rows.
    """

    def __init__(self, page: Page, access: Access, *, traceback: bool = False) -> None:
        self._page, self._access, self._traceback = page, access, traceback

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        path = environ.get("PATH_INFO", "") or "/"
        try:
            answer = self._answer(environ, path)
        except BusyError:
            answer = BUSY
        except Exception as error:  # a page that fails must not end the others, nor say why to everybody
            say(f"privstream serve: {type(error).__name__} while {PLACE.sub('a result', path)} was made")
            if self._traceback:
                say("".join(traceback.format_exception(error)).rstrip())
            answer = FAILED
        return send(answer, environ, start_response, "operators" if _for_operators(path) else "results")

    def _answer(self, environ: WSGIEnvironment, path: str) -> Answer:
        """Check whether a request may be answered, and answer it."""
        refused = None
        if not self._access.accepts_host(environ.get("HTTP_HOST", "")):
            refused = WRONG_HOST
        elif _for_operators(path) and not self._page.has_health:
            refused = NOT_FOUND
        elif not self._access.accepts(environ.get("HTTP_AUTHORIZATION", ""), operator=_for_operators(path)):
            refused = NO_TOKEN
        elif environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            refused = NOT_A_READ
        return refused or self._static(path) or self._piece(path)

    def _static(self, path: str) -> Answer | None:
        """Return a script or a style sheet, None if it is something else."""
        package = PACKAGE if path in STATIC else REPORT
        kind = STATIC.get(path) or SHARED.get(path)
        return None if kind is None else Answer(OK, kind, text_file(path[1:], package))

    def _piece(self, path: str) -> Answer:
        """Return a piece of the page."""
        pieces: dict[str, Callable[[], str]] = {
            "/": lambda: self._page.frame(operator=False),
            "/cost": self._page.cost,
            OPERATOR: lambda: self._page.frame(operator=True),
            f"{OPERATOR}/health": self._page.health,
        }
        if path == "/state":
            return Answer(OK, JSON, json.dumps(self._page.state()))
        text = pieces[path]() if path in pieces else self._of_result(path)
        return NOT_FOUND if text is None else Answer(OK, HTML, text)

    def _of_result(self, path: str) -> str | None:
        """Return a piece about a result, None if there is none."""
        place = PLACE.fullmatch(path)
        if place is None:
            return None
        id, number = place.groups()
        return self._page.result(id) if number is None else self._page.picture(id, int(number))


def _for_operators(path: str) -> bool:
    """Tell whether a path is for operators alone."""
    return path == OPERATOR or path.startswith(f"{OPERATOR}/")


def add_port(parser: argparse.ArgumentParser, port: int) -> None:
    """Add the option for the port of a command that listens."""
    parser.add_argument("--port", type=int, default=port, metavar="N", help=f"default: {port}; 0 for any that is free")


def listen(app: Any, *, host: str, port: int, threads: int) -> Any:
    """Return a server that listens.

    Raises:
        ValueError: the port is none, or not free.
    """
    if checks.integer("port", port, minimum=0) > LAST_PORT:
        raise ValueError(f"port must be <= {LAST_PORT:,}, got {port}")
    waitress = importlib.import_module("waitress")  # other commands need no server
    try:
        bodies = {"max_request_body_size": 1}  # no request has one
        return waitress.create_server(app, host=host, port=port, threads=threads, ident=None, **bodies)
    except OSError as error:
        raise ValueError(f"port must be free, got {port} of {host} ({error.strerror})") from None
