"""Processes of this machine that share the work of one run. Imports no Beam: they load it while the command does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import connection, resource_tracker
from types import ModuleType
from typing import Any, NoReturn, Self

from privstream.pipelines.command import RunError
from privstream.transforms import spill

STANDARD_ERROR = 2
BYTES_EACH, MOST = 1 << 26, 256
"""Bytes of input below which a process costs more than it spares, and processes at most."""

LONGEST = 74
"""Bytes of the name of the folder for temporary files: the name of a socket in it, of 33 more, may have 107."""

MAIN = "__main__"

WITHOUT_ANSWER = (
    "a worker process has ended before its work was done: it was killed, or there was not enough memory for all of "
    "them, and fewer --workers need less. No file is half-written"
)


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(given: int | None, size: int) -> int:
    """Return how many processes share the work of a run: as `given`, or one for each 64 MiB of input and processor."""
    if given is None:
        return max(1, min(cores(), size // BYTES_EACH))
    if not 1 <= given <= MOST:
        raise ValueError(f"workers must be from 1 to {MOST}, got {given}")
    return given


def _context() -> Any:
    """Return how processes are started: as copies of one that has loaded what they need, if the system can."""
    can = "forkserver" in multiprocessing.get_all_start_methods() and len(os.fsencode(tempfile.gettempdir())) <= LONGEST
    return multiprocessing.get_context("forkserver" if can else "spawn")


@contextmanager
def _quiet() -> Iterator[None]:
    """Let processes that start meanwhile print nothing, for runners quote records, and take no notice of Ctrl-C.

    They load no main program either, which may be somebody's own, without a guard: they would run it.
    """
    with ExitStack() as stack:
        stack.callback(sys.modules.__setitem__, MAIN, sys.modules[MAIN])
        sys.modules[MAIN] = ModuleType(MAIN)
        sys.stderr.flush()
        kept = os.dup(STANDARD_ERROR)
        stack.callback(os.close, kept)
        stack.callback(os.dup2, kept, STANDARD_ERROR)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), STANDARD_ERROR)
        resource_tracker.ensure_running()  # of multiprocessing's own; it would unblock what is blocked here
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        yield


class Crew:
    """Processes that each `perform` the tasks that they get, with a file for batches that all can read.

    They end with the block of `working`, however it ends, and with this process, however that ends. `perform` is a
    function of a module, whose errors are safe to show.
    """

    def __init__(self, number: int, perform: Callable[[Any], Any]) -> None:
        self.number, self._perform = number, perform
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []

    @contextmanager
    def working(self) -> Iterator[Self]:
        """Start them, let this process read their files, and end them."""
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="privstream-"))
                with spill.files_for(self.number + 1) as paths:
                    stack.enter_context(spill.spilled(paths, 0))
                    stack.callback(self._end)
                    self._start(paths, folder)
            except spill.SpillError as error:
                raise RunError(str(error)) from None
            yield self  # the files have no names any more: they go with the last process that has opened them

    def tell(self, tasks: Sequence[Any]) -> list[Any]:
        """Give each process a task, and return what each made of it, in their order."""
        for pipe, task in zip(self._pipes, tasks, strict=True):
            with suppress(BrokenPipeError):  # that it has ended is seen below
                pipe.send(task)
        return self._answers()

    def _start(self, paths: Sequence[str], folder: str) -> None:
        """Start all, whose temporary files go into a folder, and wait until they have opened the files."""
        context = _context()
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload(["privstream.pipelines.run.shares"])  # processes are copies of it
        with _quiet():
            for number in range(self.number):
                here, there = context.Pipe()
                given = there, paths, number + 1, folder, self._perform
                process = context.Process(target=_work, args=given, daemon=True)
                process.start()
                there.close()
                self._pipes.append(here)
                self._processes.append(process)
        self._answers()

    def _answers(self) -> list[Any]:
        """Wait for an answer of each."""
        answers: dict[int, Any] = {}
        while len(answers) < self.number:
            waited = {pipe: number for number, pipe in enumerate(self._pipes) if number not in answers}
            for ready in connection.wait(list(waited)):
                assert isinstance(ready, connection.Connection)
                try:
                    failed, answer = ready.recv()
                except (EOFError, ConnectionError):
                    raise RunError(WITHOUT_ANSWER) from None
                if failed:
                    raise RunError(answer)
                answers[waited[ready]] = answer
        return [answers[number] for number in range(self.number)]

    def _end(self) -> None:
        """End all: what they were doing is of no use any more."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _work(
    pipe: connection.Connection, paths: Sequence[str], number: int, folder: str, perform: Callable[[Any], Any]
) -> None:
    """Do one task after the other, as a process of a crew."""
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with spill.spilled(paths, number):
        pipe.send((False, None))
        while True:
            try:
                task = pipe.recv()
            except EOFError:
                return
            try:
                answer = False, perform(task)
            except RunError as error:
                answer = True, str(error)
            except MemoryError:
                answer = True, WITHOUT_ANSWER
            pipe.send(answer)


def _end_with_parent() -> NoReturn:
    """End this process when the command has ended, however it did."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
