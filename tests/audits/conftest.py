"""Make the audit toolkit of this folder importable by its tests, and what drives the stages of transforms by hand."""

import sys
from pathlib import Path

HERE = Path(__file__).parent

sys.path[:0] = [str(HERE), str(HERE.parent / "transforms"), str(HERE.parent / "runners")]
