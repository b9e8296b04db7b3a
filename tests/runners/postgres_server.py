"""A PostgreSQL server on loopback, with a data folder and a port of its own, which asks for a password."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

PASSWORD = "correct horse battery"
USER = "monitor"
DATABASE = "results"
HOST = "127.0.0.1"


def program(name: str) -> Path | None:
    """Return one of PostgreSQL's programs, which Debian keeps off the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    found = shutil.which(name, path=os.pathsep.join(map(str, folders[::-1])) or None)
    return None if found is None else Path(found)


BECOME = """
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[1]))
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Runs a program as another user. Where `subprocess` does that itself, it forks, and gRPC does not survive a fork."""


class PostgresServer:
    """Starts, stops and asks one server. PostgreSQL refuses to run as root: its files are then another user's."""

    def __init__(self) -> None:
        self.folder = folder = Path(tempfile.mkdtemp(prefix="privstream-postgres-"))  # its user cannot enter tmp_path
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = probe.getsockname()[1]
        self.user = None
        if os.getuid() == 0:
            self.user = pwd.getpwnam("postgres")
            shutil.chown(folder, self.user.pw_uid, self.user.pw_gid)
        (password := folder / "password").write_text(PASSWORD)
        self._run(
            "initdb", f"--pgdata={folder}/data", f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={password}"
        )
        self.start()
        self.ask(f"CREATE DATABASE {DATABASE}", database="postgres")

    def url(self, table: str) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/{DATABASE}/{table}"

    def start(self) -> None:
        settings = f"-c listen_addresses={HOST} -c port={self.port} -c unix_socket_directories='' -c fsync=off"
        self._run(
            "pg_ctl",
            "start",
            "--wait",
            f"--pgdata={self.folder}/data",
            f"--log={self.folder}/log",
            f"--options={settings}",
        )

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--wait", "--mode=fast", f"--pgdata={self.folder}/data")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def ask(self, statement: str, database: str = DATABASE) -> list[tuple]:
        with psycopg.connect(
            host=HOST, port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _run(self, name: str, *options: str) -> None:
        become = []
        if self.user is not None:
            become = [sys.executable, "-c", BECOME, str(self.user.pw_uid), str(self.user.pw_gid)]
        subprocess.run(
            [*become, str(program(name)), *options],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
        )
