"""`privstream audit`: replays the worst pair of neighbours of a question, or of runs by their guarantee files."""

from __future__ import annotations

import json as of_json
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, guarantee_of
from privstream.pipelines.audit.replay import RUN, RUNS, worst_pair
from privstream.pipelines.command import Command, RunError, UsageError
from privstream.pipelines.model.catalogue import MODELS, question
from privstream.pipelines.model.question import Windows
from privstream.pipelines.promise import OF_MONITOR, Promise, promise_path
from privstream.pipelines.terminal import say, show, spinner
from privstream.transforms.reading.domain import Domain
from privstream.transforms.timing.steps import END_OF_TIME, MICROS
from rich.table import Column, Table

MOST_ITEMS = 100  # of a public list: noise does not depend on how many there are

MEANING = (
    "D has one person more than D', or one event where that is protected: who spends all that limits let count, and "
    "more. Both inputs run through the whole pipeline, and all that noise is drawn for is compared. Share: how much of "
    "what the guarantee allows is used, exactly; above 1 refutes it.",
    "An audit can refute a guarantee, and cannot prove it: the proofs are in docs/proofs.",
)

Case = tuple[str, Any, PrivacyGuarantee]
"""A question, its transform, and what is claimed of it."""


def run(target: str, json: bool) -> None:
    """Replay what the target says, and end with the verdict."""
    found, without = list[dict[str, Any]](), dict[str, str]()
    try:
        cases = _runs(target) if os.path.sep in target or target.endswith(".json") else _examples(target)
        for name, case in cases:
            try:
                word, transform, claim = _as_claimed(case) if isinstance(case, Promise) else case
                with spinner(f"replaying {name}"):
                    shown, _ = worst_pair(word, transform).replay()
            except ValueError as error:
                without[name] = str(error)
                continue
            about = {"claimed_epsilon": claim.epsilon, "claimed_delta": claim.delta, "unit": str(claim.unit)}
            found.append({"name": name, **about, "share": shown.share(claim), "faults": shown.faults(claim)})
        if not found:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in without.items())
            raise ValueError(f"{target} must have a question that can be replayed: {reasons}")
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error
    if json:
        print(of_json.dumps({"replays": found, "without_replay": without}, indent=2))
    else:
        columns = [Column(name, justify="right", no_wrap=True) for name in ("epsilon", "delta", "share")]
        table = Table("replay", *columns, Column("verdict", no_wrap=True))
        for one in found:
            numbers = (f"{one[name]:.3g}" for name in ("claimed_epsilon", "claimed_delta", "share"))
            table.add_row(one["name"], *numbers, "refuted" if one["faults"] else "consistent")
        faults = [f"{one['name']}: {fault}" for one in found for fault in one["faults"]]
        notes = [f"{name} is not audited: {reason}" for name, reason in without.items()]
        show(f"audit of {target}", table, [*faults, *notes, *MEANING])
    if refuted := [one["name"] for one in found if one["faults"]]:
        raise RunError(f"the guarantee is refuted by {', '.join(refuted)}: please report it")
    say("consistent: nothing was found beyond what the guarantee allows")


def _examples(word: str) -> Iterator[tuple[str, Case]]:
    """Yield small runs of a question, of files and of streams."""
    if word not in RUNS:
        raise ValueError(f"TARGET must be one of {', '.join(RUNS)}, or a guarantee file, .json, got {word}")
    for name, options in RUNS[word].items():
        streamed = question(word).transform_class(**{**RUN, **options}, noise=KeyedNoise.random(f"audit {word} {name}"))
        for form, transform in (("file", streamed.over_files()), ("stream", streamed)):
            yield f"{name}, {form}", (word, transform, transform.guarantee)


def _runs(path: str) -> Iterator[tuple[str, Promise]]:
    """Yield what guarantee files promise: that of a question, or those beside that of a monitor."""
    promise = Promise.read(path)
    if promise is None:
        raise ValueError(f"{path} must be a file that can be read")
    if promise.word != OF_MONITOR:
        yield "the run", promise
        return
    for name, each in promise.at("questions").items():
        beside = promise_path(os.path.join(os.path.dirname(path), str(each["output"])))
        found = None if beside == path else Promise.read(beside)
        if found is None:
            raise ValueError(f"{path} must have the guarantee of {name} beside it, which is not there")
        yield name, found


def _as_claimed(promise: Promise) -> Case:
    """Return the question of a run, its transform, and what its guarantee file claims."""
    word = promise.word
    if word not in MODELS:
        raise ValueError(f"{promise.path} must be of a question, got {word}")
    make = partial(question(word).transform_class, noise=KeyedNoise.random(f"audit {word}"))
    options = _options(word, promise)
    made = make(**options)
    if options.get("renew_every") is not None:  # of budget periods the first one alone
        last = min(made.steps.last_of_period(made.steps.first), (made.steps.end or END_OF_TIME) - 1)
        made = make(**options | {"end": made.steps.bounds_micros(last)[1] / MICROS})
    try:
        claim = guarantee_of(promise.content)
    except (KeyError, RecursionError) as error:
        raise ValueError(f"{promise.path} must be a guarantee that privstream wrote: {error}") from None
    if claim.unit != made.guarantee.unit:
        raise ValueError(f"{promise.path} must promise to the unit that its parameters say")
    return word, made.over_files(), claim


def _options(word: str, promise: Promise) -> dict[str, Any]:
    """Return the arguments of the transform of a run, but for its noise."""
    given = {name: value for name, value in promise.at("parameters").items() if value is not None}
    given.pop("public_items", None)  # they cost nothing of their own, and no list of a monitor is in a file
    kind, known = MODELS[word], question(word).arguments
    asked = kind.read({"question": word} | {name: given[name] for name in kind.options() if name in given})
    windows = Windows.read({name: given[name] for name in Windows.model_fields if name in given})
    options = asked.arguments(windows, zone=given.get("time_zone"))
    options |= {name: given[name] for name in ("epsilon", "delta") if name in known and name in given}
    if options.get("domain") is not None:
        options["domain"] = Domain(options["domain"].texts.to_pylist()[:MOST_ITEMS])
    return options


COMMAND = Command(
    description="Replays the worst case of a question, or of a run at its own parameters: one person spends all that "
    "limits allow, and all that noise is drawn for is compared with a run without that person. Of a monitor, each "
    "question is held against its part of the budget. Events are invented: it reads no data of yours, costs no privacy "
    "budget, and needs no key. It is for questions whose noise is added to numbers. Public lists are read where the "
    "file says.",
    options={
        "target": {
            "metavar": "TARGET",
            "help": "a question, such as counts, at small parameters; RESULT.guarantee.json, or the _guarantee.json of "
            "the folder of a monitor",
        },
        "--json": {"action": "store_true", "help": "print one JSON object"},
    },
    run=run,
)
