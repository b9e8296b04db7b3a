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
from typing import Any, NoReturn

from privstream.pipelines.command import RunError
from privstream.pipelines.terminal import muted_stderr
from privstream.transforms import spill

BYTES_EACH, MOST = 1 << 26, 256
"""Bytes of input below which a process costs more than it spares, and processes at most."""

LONGEST = 74
"""Bytes of the name of the folder for temporary files: the name of a socket in it, of 33 more, may have 107."""

WITHOUT_ANSWER = (
    "a worker process has ended before its work was done: it was killed, or there was not enough memory for all of "
    "them, and fewer --workers need less. No file is half-written"
)


def workers_for(given: int | None, size: int | None) -> int:
    """Return how many processes share a run: as `given`, or one for each 64 MiB of input and processor.

    The size is None for input that has no end, and on other runners: no processes share these.
    """
    if given is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(cores, (size or 0) // BYTES_EACH))
    if not 1 <= given <= MOST or (given > 1 and size is None):
        raise ValueError(f"workers must be from 1 to {MOST}, and 1 but for files on FnApiRunner, got {given}")
    return given


@contextmanager
def _quiet() -> Iterator[None]:
    """Let processes that start meanwhile print nothing, for runners quote records, and take no notice of Ctrl-C.

    They load no main program either, which may be somebody's own, without a guard: they would run it.
    """
    with ExitStack() as stack:
        stack.callback(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
        sys.modules["__main__"] = ModuleType("__main__")
        stack.enter_context(muted_stderr())
        resource_tracker.ensure_running()  # of multiprocessing's own; it would unblock what is blocked here
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        yield


Tell = Callable[[Sequence[Any]], list[Any]]
"""Gives each process a task, and returns what each made of it, in their order."""


@contextmanager
def crew(number: int, perform: Callable[[Any], Any]) -> Iterator[Tell]:
    """Start processes that each `perform` the tasks that they get, with a file for batches that all can read.

    They end with the block, however it ends, and with this process, however that ends. `perform` is a function of a
    module, whose errors are safe to show.
    """
    can = "forkserver" in multiprocessing.get_all_start_methods()
    method = "forkserver" if can and len(os.fsencode(tempfile.gettempdir())) <= LONGEST else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["privstream.pipelines.run.pipeline"])  # processes are copies of it
    pipes: list[connection.Connection] = []
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="privstream-"))
            with spill.files_for(number + 1) as paths:
                stack.enter_context(spill.spilled(paths, 0))
                with _quiet():
                    for own in range(1, len(paths)):
                        here, there = context.Pipe()
                        process = context.Process(target=_work, args=(there, paths, own, folder, perform), daemon=True)
                        process.start()
                        there.close()
                        pipes.append(here)
                        for end in (here.close, process.join, process.kill):  # the last one first
                            stack.callback(end)
                _answers(pipes)  # they have opened the files, which have no names from here on
        except spill.SpillError as error:
            raise RunError(str(error)) from None

        def tell(tasks: Sequence[Any]) -> list[Any]:
            for pipe, task in zip(pipes, tasks, strict=True):
                with suppress(BrokenPipeError):  # that it has ended is seen below
                    pipe.send(task)
            return _answers(pipes)

        yield tell


def _answers(pipes: Sequence[connection.Connection]) -> list[Any]:
    answers: dict[Any, Any] = {}
    while len(answers) < len(pipes):
        for ready in connection.wait([pipe for pipe in pipes if pipe not in answers]):
            assert isinstance(ready, connection.Connection)
            try:
                failed, answer = ready.recv()
            except (EOFError, ConnectionError):
                raise RunError(WITHOUT_ANSWER) from None
            if failed:
                raise RunError(answer)
            answers[ready] = answer
    return [answers[pipe] for pipe in pipes]


def _work(
    pipe: connection.Connection, paths: Sequence[str], number: int, folder: str, perform: Callable[[Any], Any]
) -> None:
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with spill.spilled(paths, number):
        pipe.send((False, None))
        while True:
            task = pipe.recv()
            try:
                answer = False, perform(task)
            except RunError as error:
                answer = True, str(error)
            except MemoryError:
                answer = True, WITHOUT_ANSWER
            pipe.send(answer)


def _end_with_parent() -> NoReturn:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
