"""State that another run wrote, or that is damaged: refused in words; nothing is lost or repeated."""

import copy
import pickle
import random
import traceback
from functools import cache

import pytest
from counts_workloads import WINDOWS, random_events, transform
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.mechanism import pack, unpack
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.timing.step_fn import PROGRESS
from tiny_runner import END, Chain, dofns_of
from workloads import KEY, SECOND, START

NAME = "found, more"
EVENTS = random_events(NAME, random.Random(1), 900)
STOPPED = START + 10 * (WINDOWS // 2) + 5
STAGE, COUNTS = "known keys", "FoundKeys state"


@cache
def in_the_middle():
    """Return a run that stands in the middle, where all has arrived."""
    chain = Chain(transform(NAME), random.Random(2))
    chain.arrive(EVENTS)
    chain.advance(STOPPED * SECOND)
    return chain


def begun():
    """Return a copy of such a run."""
    return copy.deepcopy(in_the_middle())


def resumed(chain, **options):
    """Give the last stage what is left of a job that was stopped: its state, and no cache; perhaps other options."""
    publish = chain.stages[1]
    publish.workers = [pickle.loads(pickle.dumps(dofns_of(transform(NAME, **options))["PublishCounts"]))]
    publish.workers[0].setup()


def log_of(chain):
    """Return a place of the last stage whose log has a state and what came since, and the log."""
    states = chain.stages[1].cells.states
    return next(
        (place, log) for place, log in sorted(states.items()) if place[1] == "publish_counts_log" and len(log) > 2
    )


def progress_as(written, **changes):
    """Return the progress of a key with other fields."""
    return pack("progress", PROGRESS, unpack("progress", PROGRESS, written) | changes)


def written_as(cells, key):
    """Let the progress of a key tell of the log that there is."""
    place, size = (key, "publish_counts_progress"), sum(map(len, cells.states[key, "publish_counts_log"]))
    (written,) = cells.states[place]
    cells.states[place] = [progress_as(written, log=size)]


def rewritten(data, kind, version=1, change=lambda fields: fields):
    """Return a snapshot of another version, or with other fields: its checksum is right."""
    return pack(kind, version, change(unpack(kind, 1, data)))


def with_counts(data, version=1, change=lambda fields: fields):
    """Return a snapshot of the stage with another one of the mechanism."""
    return rewritten(
        data, STAGE, change=lambda fields: fields | {"counts": rewritten(fields["counts"], COUNTS, version, change)}
    )


def without_totals(fields):
    return {name: column for name, column in fields.items() if not name.endswith(".totals")}


CHANGES = {
    "a newer stage": (
        lambda log: [rewritten(log[0], STAGE, 2), *log[1:]],
        f"snapshot must be of '{STAGE}', version 1, got '{STAGE}', 2",
    ),
    "a column less": (
        lambda log: [with_counts(log[0], change=without_totals), *log[1:]],
        "must have the fields of this state",
    ),
    "another order": (lambda log: [log[0], *log[:0:-1]], r"it cannot be decoded \(ValueError\)"),
    "a step twice": (lambda log: [*log, log[-1]], r"it cannot be decoded \(ValueError\)"),
}


def refused(chain, match):
    """Check that the run goes no step on, says what is wrong and what to do, and quotes nobody."""
    with pytest.raises(SnapshotError, match=match) as caught:
        chain.advance(END)
    told = "".join(traceback.format_exception(caught.value))
    assert str(caught.value).startswith("state of PublishCounts cannot be used: ")
    assert "resume from the same savepoint or checkpoint" in str(caught.value)
    assert not any(private in told for private in ("seldom", "eee", "ä", "user "))


@pytest.mark.parametrize("case", CHANGES)
def test_other_state_is_refused_and_the_right_one_goes_on(case):
    undisturbed = begun()
    undisturbed.advance(END)
    chain = begun()
    place, good = log_of(chain)
    change, match = CHANGES[case]
    cells = chain.stages[1].cells
    cells.states[place] = change(good)
    written_as(cells, place[0])
    resumed(chain)
    refused(chain, match)
    cells = chain.stages[1].cells
    assert cells.states[place] == change(good), "a bundle that fails leaves the state as it was"
    cells.states[place] = good
    written_as(cells, place[0])
    resumed(chain)
    chain.advance(END)
    assert sorted(chain.rows) == sorted(undisturbed.rows), "nothing is lost, and nothing is published twice"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"end": START + 10 * 4 * WINDOWS}, "snapshot must be made by a mechanism with equal parameters"),
        ({"epsilon": 4.1}, "snapshot must be made by a mechanism with equal parameters"),
        ({"shards": 4}, "state must be of a run with as many shards, 4, got 3"),
    ],
)
def test_state_of_a_run_with_other_options_is_refused(options, match):
    """The end decides over how many windows items are found. Or the state does not say its options."""
    chain = begun()
    states = chain.stages[1].cells.states
    resumed(chain, **options)
    refused(chain, "options must be those of the run that wrote it")
    for place in [place for place, written in states.items() if place[1] == "publish_counts_progress" and written]:
        states[place] = [progress_as(states[place][0], options=b"")]
    refused(chain, match)


@pytest.mark.parametrize("lost", ["the last segment", "the log", "waiting records", "a byte", "the progress"])
def test_what_is_missing_is_noticed(lost):
    """An empty log is that of a key that has not begun: it would begin anew, with limits and noise of before."""
    chain = begun()
    place, good = log_of(chain)
    cells = chain.stages[1].cells
    if lost == "waiting records":
        publish, publish.advance = chain.stages[1], lambda _: None
        chain.advance(END)
        del publish.advance
        cells = publish.cells
        key = next(place[0] for place, found in cells.states.items() if place[1] == "publish_counts_waiting" and found)
        cells.states[key, "publish_counts_waiting"].pop()
    elif lost == "the progress":
        del cells.states[place[0], "publish_counts_progress"]
    else:
        cut = {"the last segment": good[:-1], "the log": [], "a byte": [*good[:-1], good[-1][:-1]]}
        cells.states[place] = cut[lost]
    resumed(chain)
    what = "waiting records" if lost == "waiting records" else "log"
    refused(chain, f"{what} must have [0-9,]+ bytes, got [0-9,]+")


@pytest.mark.parametrize(
    "other", [KeyedNoise(bytes(range(9, 41)), "rows"), KeyedNoise(KEY, "other")], ids=["key", "run"]
)
def test_state_of_another_key_or_run_is_refused(other):
    """Its random choice of contributions is another one: both together would be beyond the limits."""
    chain = begun()
    resumed(chain, noise=other)
    refused(chain, "options must be those of the run that wrote it")
