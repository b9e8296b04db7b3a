"""Jobs live longer than releases: what every version has stored is restored, and rows go on as they would have."""

import numpy as np
import pytest
from privstream.mechanisms.checks import SnapshotError
from stored_states import EXAMPLES, FOLDER, MORE, Stored, all_stages, longer, names_of, read, rest_of, stage_of

FILES = {path.name.removesuffix(".json.gz"): read(path) for path in sorted(FOLDER.glob("*.json.gz"))}
NEWEST = FILES["0.1.0"]
CASES = [
    pytest.param(version, found, id=f"{version}-{found.stage}") for version, some in FILES.items() for found in some
]
OTHER_NOISE = {("0.1.0a1", "PublishHistogram"), ("0.1.0a1", "RaiseFlags")}
"""Stages whose short runs have noise from another tree since: rows of both must not be mixed in one run."""

SMOOTHED = ("PublishQuantiles", "PublishCardinality", "DecideRules", "CompareCounts", "TestMeasurements")
INTERVALS = ("AnswerQueries", "CountRanges", "PublishHistogram")
NEW_COLUMNS = {("0.1.0a1", stage): 5 for stage in ("DecideStatuses", "PublishAtEnds", "PublishCounts", "RankItems")} | {
    (version, stage): columns
    for version in ("0.1.0a1", "0.1.0")
    for stages, columns in ((SMOOTHED, 3), (INTERVALS, 2))
    for stage in stages
}
"""Columns that rows have since then, at their end."""

OTHER_BOUNDS = {
    ("0.1.0a1", "CompareCounts"): "6851dec4cfe52ecad7c0e5235e80c42f",
    ("0.1.0", "CompareCounts"): "6851dec4cfe52ecad7c0e5235e80c42f",
    ("0.1.0a1", "DecideStatuses"): "241f201fb33a238c863f25fcd9bfc5f0",
    ("0.1.0", "DecideStatuses"): "36b9b77e86c659b8c677a42a18ea98a8",
}
"""What is emitted since lower bounds of gaps hold among alerts, and since the scale of noise on counts has 16 bits, by
which standard deviations have another sixth digit; with the numbers of before it was what is stored."""


@pytest.mark.parametrize(("version", "found"), CASES)
def test_what_a_version_has_stored_is_restored(version: str, found: Stored) -> None:
    """If rows are others for a reason, noise has another label, and jobs that run must begin anew: say so."""
    assert names_of(all_stages()[found.stage]) == found.names, "a runner finds states by their names"
    stage, then = stage_of(found.example, found.stage), (version, found.stage)
    if then in OTHER_NOISE:
        with pytest.raises(SnapshotError, match=r"^snapshot kind must be"):
            rest_of(stage, found)
    else:
        emitted = OTHER_BOUNDS.get(then, found.emitted)
        assert rest_of(stage, found, NEW_COLUMNS.get(then, 0)) == emitted


def test_every_stage_has_a_stored_state() -> None:
    assert {found.stage for found in NEWEST} == {*all_stages()}
    assert all(found.waiting for found in NEWEST)


@pytest.mark.parametrize("found", [found for found in NEWEST if found.progress], ids=lambda found: found.stage)
def test_a_changed_option_is_refused(found: Stored) -> None:
    if found.stage == "PublishAtEnds":
        pytest.skip("it has rows that are published, and nothing depends on options")
    epsilon = EXAMPLES[MORE.get(found.example, (found.example,))[0]][1]["epsilon"]
    with pytest.raises(SnapshotError, match=r"^options must be those of the run that wrote it$"):
        rest_of(stage_of(found.example, found.stage, epsilon=1.01 * epsilon), found)


def test_options_are_the_same_however_they_are_written() -> None:
    same = stage_of("counts", "PublishFound").keys.options
    assert len(same) == 8
    for changes in ({"epsilon": 30}, {"window": 10.0}, {"beta": 0.01}, {"streams": None}):
        assert stage_of("counts", "PublishFound", **changes).keys.options == same, changes
    assert longer("ranges", standing=np.array([(1, 64)])).fingerprint == longer("ranges").fingerprint
    assert longer("top-k", items_per_step=4).fingerprint == longer("top-k", items_per_step=None).fingerprint
    assert longer("top-k", items_per_step=None).fingerprint != longer("top-k").fingerprint, "1 was the default once"
    for changes in ({"epsilon": 30.5}, {"beta": 0.02}, {"shards": 3}, {"top": 5}):
        assert stage_of("counts", "PublishFound", **changes).keys.options != same, changes
