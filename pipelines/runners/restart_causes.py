"""Says in plain words why Flink restarted a job, from the stack trace that it keeps, of which no record is quoted."""

from __future__ import annotations

import re

CAUSES = {
    r"ModuleNotFoundError: No module named '([\w.]+)'": (
        "the workers' Python has no module {0}: install the package there, the same version, and restart the workers"
    ),
    r"noise_key_file must be (?:a readable file|readable by)": (
        "a worker cannot read the noise key: put the file on the same path on every worker, readable by its user only"
    ),
    r"noise key must be the same on every worker": (
        "a worker has another noise key than the launch: give all of them the same; a new key is a new run"
    ),
    r"SnapshotError: state of (\w+) cannot be used": (
        "the state of {0} was written by another version or with other options, or is damaged: nothing has been "
        "published from it; take the version and the options that wrote it, and resume from the same savepoint or "
        "checkpoint, or an earlier one, or begin a new run"
    ),
    r"OutOfDirectMemoryError|[Dd]irect buffer memory|Server sendMessage\(\) failed with Error": (
        "a task manager ran out of direct memory, which messages between Java and Python need: give task managers more "
        "memory (--task-manager-memory), or raise taskmanager.memory.task.off-heap.size"
    ),
    r"OutOfMemoryError: Metaspace": (
        "a task manager ran out of memory for classes (Metaspace): put Beam's libraries on its own class path"
    ),
    r"Java heap space|GC overhead limit exceeded|Application error processing RPC": (
        "a task manager ran out of heap memory: give task managers more memory (--task-manager-memory, or "
        "taskmanager.memory.process.size)"
    ),
    r"(?m)^(?:\w+\.)*_?(?:Array|Arrow)?MemoryError\b": (
        "a Python worker ran out of memory: give the workers more memory, or use a larger parallelism"
    ),
    r"SDK (?:harness )?(?:closed connection|disconnected)|CANCELLED: (?:client cancelled|call already cancelled)": (
        "a Python worker ended or was killed: worker-pool.out says why; if it does not, the system may have killed it "
        "for its memory"
    ),
    r"RemoteTransportException|Heartbeat of TaskManager|TaskManager with id \S+ is no longer reachable|"
    r"TaskExecutor is shutting down|TaskManager \S+ disconnected|ResourceManager.*TaskExecutor.*disconnect": (
        "a task manager ended or was killed: its .out file says why; if it does not, the system may have killed it "
        "for its memory"
    ),
    r"NoResourceAvailableException|Could not acquire the minimum required resources": (
        "there are too few free slots: start task managers, cancel jobs that are not wanted, or lower --parallelism"
    ),
    r"No space left on device": "a disk is full: make room where checkpoints, temporary files and output lie",
    r"Exceeded checkpoint tolerable failure threshold": (
        "a checkpoint took longer than --checkpoint_timeout_millis: either a worker cannot load the pipeline "
        "(worker-pool.out says why), or storage or workers are too slow"
    ),
}
"""What a stack trace shows, and what that means; the first that is found counts."""

PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception))\b", re.MULTILINE)
JAVA_ERROR = re.compile(r"(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error))")


def restart_cause(trace: str) -> str:
    """Return what a stack trace means: what to do where that is known, else the type of the innermost error."""
    for pattern, advice in CAUSES.items():
        known = re.search(pattern, trace)
        if known:
            return advice.format(*known.groups())
    kinds = PYTHON_ERROR.findall(trace) or JAVA_ERROR.findall(trace)
    return kinds[-1] if kinds else "unknown; see the task managers' logs"
