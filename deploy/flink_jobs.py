"""What one asks of the jobs of a Flink cluster, by its REST interface."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAVEPOINT_SECONDS = 120
UPGRADE_SECONDS = 180
ENDED = ("FINISHED", "CANCELED", "FAILED")


class JobError(Exception):
    """Something the user can put right; the message says what to do."""


class Jobs:
    """The jobs of one cluster.

    Args:
        address: of the job manager's REST interface, such as `http://127.0.0.1:8081`.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")

    def rest(self, path: str, method: str = "GET", body: dict | None = None) -> Any:
        """Call the REST interface."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.address}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return json.loads(answer.read() or b"{}")

    def listed(self) -> list[dict]:
        """Return jobs with `jid`, `name`, `state`, the newest first."""
        jobs = self.rest("/jobs/overview")["jobs"]
        return sorted(jobs, key=lambda job: -job["start-time"])

    def state(self, job: str) -> str:
        """Return a job's state."""
        return self.rest(f"/jobs/{job}")["state"]

    def cancel(self, job: str) -> None:
        """End a job; its last checkpoint stays."""
        self.rest(f"/jobs/{job}?mode=cancel", "PATCH")

    def checkpoints(self, job: str) -> dict:
        """Return Flink's account of a job's checkpoints."""
        return self.rest(f"/jobs/{job}/checkpoints")

    def savepoint(self, job: str, *, suspend: bool) -> str:
        """Write a savepoint and return where; with `suspend`, nothing runs between it and the job's end."""
        path, body = ("stop", {"drain": False}) if suspend else ("savepoints", {"cancel-job": False})
        trigger = self.rest(f"/jobs/{job}/{path}", "POST", body)["request-id"]
        deadline = time.monotonic() + SAVEPOINT_SECONDS
        while time.monotonic() < deadline:
            answer = self.rest(f"/jobs/{job}/savepoints/{trigger}")
            if answer["status"]["id"] == "COMPLETED":
                operation = answer["operation"]
                if "location" in operation:
                    return operation["location"].removeprefix("file:")
                raise JobError(
                    f"no savepoint was written: {_cause(operation['failure-cause']['stack-trace'])}; try again "
                    "when the job runs without restarts, or resume from its last checkpoint"
                )
            time.sleep(0.2)
        raise JobError(f"no savepoint after {SAVEPOINT_SECONDS} s; is the job busy? `status` shows it")

    def resume(self, submit: Callable[[], None], savepoint: str) -> str:
        """Start a job from a savepoint, see that it goes on from there, and return it.

        It goes on when Flink has restored the savepoint, and has then completed a checkpoint without a restart; what
        does not is cancelled, unless several jobs begin: it is not known then which of them it is. A step reads its
        state with its next window, and restarts the job if it cannot use it.

        Args:
            submit: gives the job to the cluster.
            savepoint: the folder of the savepoint that it starts from.

        Raises:
            JobError: it does not go on; says why.
        """
        before = {each["jid"] for each in self.listed()}
        submit()
        deadline = time.monotonic() + UPGRADE_SECONDS
        while not (new := {each["jid"] for each in self.listed()} - before):
            if time.monotonic() > deadline:
                raise JobError(f"no job has come within {UPGRADE_SECONDS} s; see launcher.out")
            time.sleep(0.2)
        if len(new) > 1:
            raise JobError(f"several jobs have begun, so that none was cancelled: {', '.join(sorted(new))}")
        (job,) = new
        try:
            while not self._goes_on(job, savepoint):
                if time.monotonic() > deadline:
                    raise JobError(f"it has completed no checkpoint within {UPGRADE_SECONDS} s")
                time.sleep(0.2)
        except JobError:
            if self.state(job) not in ENDED:
                self.cancel(job)
            raise
        return job

    def _goes_on(self, job: str, savepoint: str) -> bool:
        """Tell whether a job has completed a checkpoint since it was restored from a savepoint."""
        try:
            trouble, state, latest = self.trouble(job), self.state(job), self.checkpoints(job)["latest"]
        except urllib.error.HTTPError:
            return False  # the job manager has not made all of it yet
        if trouble or state in ENDED:
            raise JobError(trouble or f"it has ended: {state}")
        restored, completed = latest["restored"], latest["completed"]
        if restored is None or completed is None:
            return False
        if Path(restored["external_path"].removeprefix("file:")).name != Path(savepoint).name:
            raise JobError("it was not restored from the savepoint: the command must take the options it is given")
        return completed["trigger_timestamp"] > restored["restore_timestamp"]

    def restarts(self, job: str) -> int:
        """Return how often a job was restarted; 0 while Flink has not counted."""
        found = self.rest(f"/jobs/{job}/metrics?get=numRestarts")
        return int(found[0]["value"]) if found else 0

    def trouble(self, job: str) -> str:
        """Return why a job was last restarted, in words that quote no record; empty if it never was."""
        entries = self.rest(f"/jobs/{job}/exceptions")["exceptionHistory"]["entries"]
        return _cause(entries[0]["stacktrace"]) if entries else ""


def latest_checkpoint(folder: Path, job: str | None = None) -> Path:
    """Return the newest complete checkpoint that was retained, of one job or of any."""
    found = list(folder.glob(f"{job or '*'}/chk-*/_metadata"))
    if not found:
        whose = f"of job {job} " if job else ""
        raise JobError(f"there is no checkpoint {whose}in {folder}; was the job started with --checkpointing_interval?")
    return max(found, key=lambda file: file.stat().st_mtime_ns).parent


def _cause(trace: str) -> str:
    """Return what a stack trace means."""
    # A Python without the package can start the script all the same, which says then what is missing.
    from privstream.pipelines.runners.flink import restart_cause  # noqa: PLC0415

    return restart_cause(trace)
