"""Makes the helpers of this folder importable by its tests."""

import sys
from pathlib import Path

import pytest
from privstream.mechanisms import smoothing

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def models_of_streams(monkeypatch):
    """Counts of files are smoothed with the models that states have, and no more."""
    monkeypatch.setattr(smoothing, "_GRID", smoothing._GRID[: smoothing._ONWARD])
    monkeypatch.setattr(smoothing, "_PRIOR", smoothing._PRIOR[: smoothing._ONWARD])
