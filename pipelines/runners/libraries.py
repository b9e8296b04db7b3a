"""Spares the processes of commands what libraries load and write, and no command uses; asking for memory again; and
slow sorts.

It is imported before any of them, and by commands alone: programs that use the library may need all of it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from threading import Lock
from types import ModuleType
from typing import Any

from typing_extensions import override

UNUSED = ("apache_beam.io.gcp.bigquery", "bson", "pandas", "pymongo")
"""What Beam and Arrow load where they find it, and do without if it is not there."""

LATER = {"boto3", "httplib2", "numpy.f2py", "numpy.testing", "pyarrow.compute"}
"""What is loaded when something in it is used, by few commands: each takes part of a tenth of a second."""

LOCK = Lock()

KEPT = {-1: 1 << 26, -2: 1 << 24, -3: 1 << 25}
"""What glibc calls M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD, in bytes."""

WAIT = ("OPENBLAS_THREAD_TIMEOUT", "4")
"""Threads of OpenBLAS sleep after 2^4 cycles without work. Else they wait for it by computing, a tenth of a second."""

PROCESSOR = "/proc/cpuinfo"
WITHOUT = ("NPY_DISABLE_CPU_FEATURES", "X86_V4")
"""What tells numpy to do without AVX-512, by a name that it knows from `KNOWN_SINCE` on; older ones sort no faster."""

KNOWN_SINCE = (2, 4)


class Later(ModuleType):
    """Stands for a module until something in it is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system looks for
            raise AttributeError(name)
        with LOCK:  # workers in threads may be the first to use it
            LATER.discard(self.__name__)
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        vars(self).update({word: value for word, value in vars(module).items() if not word.startswith("__")})
        return getattr(module, name)


class Libraries(MetaPathFinder, Loader):
    """Finds nothing that is unused, puts off what is seldom used, and leaves the rest to others."""

    @override
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname in UNUSED:
            raise ModuleNotFoundError(f"no command uses {fullname}", name=fullname)
        if fullname in NOTES:
            _add_no_notes(*NOTES[fullname])
        found = PathFinder.find_spec(fullname, path) if fullname in LATER else None
        if found is not None:
            found.loader = self
        return found

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Later(spec.name)

    @override
    def exec_module(self, module: ModuleType) -> None:
        return None


def _add_no_notes(module: str, name: str, instead: Callable[..., Any]) -> None:
    """Let a library leave its help pages as they are, if this version has what it adds to them in the usual place."""
    with suppress(ImportError):
        setattr(importlib.import_module(module), name, instead)


def _as_it_is(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Take the place of a decorator that changes documentation alone."""
    return lambda function: function


def _no_text(*args: Any) -> str:
    """Take the place of what lists the properties of artists for their documentation."""
    return ""


SCIPY = ("scipy._lib._array_api", "xp_capabilities", _as_it_is)
MATPLOTLIB = ("matplotlib.artist", "kwdoc", _no_text)
NOTES: Mapping[str, tuple[str, str, Callable[..., Any]]] = {
    **dict.fromkeys(("scipy.fft", "scipy.special"), SCIPY),
    **{f"matplotlib.{part}": MATPLOTLIB for part in ("collections", "lines", "patches", "text")},
}
"""Parts of libraries that add notes to hundreds of help pages, of which the others load one before; and by what."""


def _keep_memory() -> None:
    """Let glibc keep what is freed for what comes next: the system would clear each array of a batch anew, for a tenth
    of a run's CPU seconds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for which, size in KEPT.items():
            mallopt(which, size)


def sorts_slowly(processor: str) -> bool:
    """Tell whether a processor, as Linux describes it, is AMD's Zen 4: there numpy sorts by AVX-512, in five times as
    long as by AVX2, because storing some lanes of a register is microcode.
    """
    lines = (line.partition(":") for line in processor.partition("\n\n")[0].splitlines())
    said = {name.strip(): value.split() for name, _, value in lines}
    zen_3_or_4 = said.get("vendor_id") == ["AuthenticAMD"] and said.get("cpu family") == ["25"]
    return zen_3_or_4 and "avx512f" in said.get("flags", [])


def _sort_fast() -> None:
    """Let numpy do without AVX-512 where it sorts slowly by it, unless the environment says which features it has."""
    with suppress(OSError), open(PROCESSOR, encoding="utf-8", errors="replace") as file:
        if sorts_slowly(file.read(1 << 13)) and knows_name(PathFinder.find_spec("numpy")):
            os.environ.setdefault(*WITHOUT)


def knows_name(numpy: ModuleSpec | None) -> bool:
    """Tell whether numpy, which is not loaded yet, knows what `WITHOUT` names; it warns of other names.

    Raises:
        OSError: it does not say its version where others do.
    """
    if numpy is None or numpy.origin is None:
        return False
    with open(os.path.join(os.path.dirname(numpy.origin), "version.py"), encoding="utf-8") as file:
        said = re.search(r'^version = "(\d+)\.(\d+)', file.read(), re.MULTILINE)
    return said is not None and (int(said[1]), int(said[2])) >= KNOWN_SINCE


_keep_memory()
_sort_fast()
os.environ.setdefault(*WAIT)
sys.meta_path.insert(0, Libraries())
