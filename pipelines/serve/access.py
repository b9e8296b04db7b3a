"""Who may see a page: tokens, and the addresses under which it is asked for."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from urllib.parse import urlsplit

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
