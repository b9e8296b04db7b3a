"""Hides libraries that Beam and Arrow load where they find them, and no command uses: half of Beam's time to load.

Only the processes of commands import this. Programs that use the library may need all of these.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

from typing_extensions import override

UNUSED = ("apache_beam.io.gcp.bigquery", "bson", "pandas", "pymongo")
"""What Beam and Arrow do without if it is not there."""


class Hidden(MetaPathFinder):
    """Finds none of them."""

    @override
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in UNUSED:
            raise ModuleNotFoundError(f"no command uses {fullname}", name=fullname)


sys.meta_path.insert(0, Hidden())
