"""Lets the tests of this folder import their helpers, and the harness of the runners."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runners")]
