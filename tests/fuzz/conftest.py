"""Lets the tests of this folder import the fuzzer, and the helpers of the transforms and runners."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / folder) for folder in ("transforms", "runners"))]
