"""Jobs live longer than releases: what every version has stored is restored, and rows go on as they would have."""

from collections import defaultdict
from functools import cache

import pytest
import stored_states
from privstream.mechanisms.checks import SnapshotError
from stored_states import FOLDER, Stored, all_stages, names_of, read, rest_of, stages_of

FILES = {path.name.removesuffix(".json.gz"): read(path) for path in sorted(FOLDER.glob("*.json.gz"))}
CASES = [
    pytest.param(found, id=f"{version}-{found.stage}", marks=[] if first else [pytest.mark.slow])
    for version, states in FILES.items()
    for first, found in zip([True, *[False] * len(states)], states, strict=False)
]
