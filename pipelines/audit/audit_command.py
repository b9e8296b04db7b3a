"""`privstream audit QUESTION`: replays the worst pair of neighbours, and attacks tests in secret by many trials."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.run_identity import noise_source
from privstream.pipelines.audit.attacks import PERIOD, Attack
from privstream.pipelines.audit.evidence import Evidence, measure
from privstream.pipelines.audit.replay import claim_of, faults, measured, share
from privstream.pipelines.audit.trials import Trials, run_all, run_share
from privstream.pipelines.audit.worst import RUN, RUNS, worst_pair
from privstream.pipelines.command import InconclusiveError, RunError, UsageError
from privstream.pipelines.console import show
from privstream.pipelines.model.question import METHOD, QuestionInfo, loaded
from privstream.pipelines.runners.processes import Crew, cores, workers_for
from privstream.pipelines.terminal import say
from rich.table import Table

WRONG = 1e-4
"""Probability with which some bound from trials may be wrong, of all attacks of an audit together."""

MOST_WORKERS = 8
"""Processes that share the trials, unless more are asked for: each needs memory for events of its own."""

ITEMS_AT_ONCE = 20_000
"""Trials with D in one run, where they are items."""

MORE = 4
"""So many times as many trials follow where a control was missed: that depends on controls alone."""

FEWEST = 400
"""Fewer trials catch no control."""

CONSISTENT, REFUTED, NO_POWER = "consistent", "refuted", "no power"

REPLAYED = (
    "D has one person more than D', who spends all that limits let count, and more. Both inputs run through the whole "
    "pipeline, and all that noise is drawn for is compared."
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a replay, or an attack by trials, has found.

    Attributes:
        name: in a few words.
        text: what the inputs are, and what the adversary looks at.
        method: of the transform, empty if there is but one.
        guarantee: what is claimed.
        measured: epsilon; of a replay exactly, of trials the lower end of a 95% interval.
        share: how much of what is allowed was shown.
        verdict: what follows.
        found: all of it as plain values.
        about: whether it shows the epsilon that is there, or a delta alone.
        control: what trials with a larger budget than is claimed show, as plain values; None of a replay.
    """

    name: str
    text: str
    method: str
    guarantee: PrivacyGuarantee
    measured: float
    share: float
    verdict: str
    found: Mapping[str, Any]
    about: Literal["epsilon", "delta"] = "epsilon"
    control: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values for JSON."""
        claim = self.guarantee
        names = ("epsilon", "delta", "neighbouring", "proof")
        return {
            "attack": self.name,
            "about": self.about,
            "text": self.text,
            "method": self.method or None,
            "claimed": {name: getattr(claim, name) for name in names} | {"unit": str(claim.unit)},
            "found": {"measured_epsilon": self.measured, "share": self.share} | dict(self.found),
            "control": self.control,
            "verdict": self.verdict,
        }


def replayed(name: str, word: str, transform: Any, claim: PrivacyGuarantee | None = None) -> Finding:
    """Replay the worst pair of a transform, against what it promises or another claim.

    Raises:
        ValueError: there is no such pair; the message says why.
        RunError: a run failed.
    """
    pair, guarantee = worst_pair(word, transform), transform.guarantee if claim is None else claim
    shown, _, _ = pair.replay()
    allowed = claim_of(guarantee)
    broken = faults(shown, allowed)
    return Finding(
        name=name,
        text=REPLAYED,
        method=getattr(transform, METHOD, ""),
        guarantee=guarantee,
        measured=measured(shown, guarantee),
        share=share(shown, allowed),
        verdict=REFUTED if broken else CONSISTENT,
        found={"faults": broken, "shift": shown.shift, "draws_of_one_run_alone": shown.alone},
    )


def replays(spec: QuestionInfo, key_file: str | None) -> list[Finding]:
    """Replay the worst pairs of a question: of runs on files, and of streams.

    Raises:
        ValueError: the noise key cannot be used.
    """
    found = []
    for name, options in RUNS.get(spec.word, {}).items():
        noise = noise_source(key_file, None, f"audit {spec.word} {name}")
        streamed = spec.transform_class(**{**RUN, **options}, noise=noise)
        for form, transform in (("file", streamed.to_finish()), ("stream", streamed)):
            say(f"replay: {name}, {form}")
            found.append(replayed(f"{name}, {form}", spec.word, transform))
    return found


@dataclass(frozen=True, kw_only=True)
class Trying:
    """How attacks are run by trials.

    Attributes:
        spec: the question.
        trials: of each attack.
        key_file: file with the noise key, or None for a new key each time.
        wrong: probability with which some bound of one attack may be wrong.
        crew: returns processes that share the trials, which it starts when they are first wanted; None for this one
            alone.
    """

    spec: QuestionInfo
    trials: int
    key_file: str | None
    wrong: float
    crew: Callable[[], Crew | None] = lambda: None

    def find(self, attack: Attack) -> Finding:
        """Run an attack on the transform and on its control.

        Raises:
            ValueError: the noise key cannot be used.
            RunError: a run failed.
        """
        number = attack.times * self.trials
        at_once = self.trials if attack.told_by == PERIOD else min(number, ITEMS_AT_ONCE * attack.one_in)
        both = [attack.options, {**attack.options, **attack.control}]
        noise = [
            noise_source(self.key_file, None, f"audit {self.spec.word} {attack.name} {name}")
            for name in ("claimed", "control")
        ]
        runs = [
            Trials(self.spec, attack, options, min(at_once, number - first), source, first)
            for first in range(0, number, at_once)
            for options, source in zip(both, noise, strict=True)
        ]
        claim, seen = runs[0].guarantee, run_all(runs, self.crew())
        shown, caught = (measure(*_together(seen[place::2]), claim, self.wrong) for place in (0, 1))
        return Finding(
            name=attack.name,
            text=attack.text,
            method=getattr(runs[0].transform, METHOD, ""),
            guarantee=claim,
            measured=shown.interval,
            share=shown.share,
            verdict=REFUTED if shown.violated else CONSISTENT if caught.violated else NO_POWER,
            found=_plain(shown),
            about=attack.about,
            control={"options": dict(attack.control), "measured_epsilon": caught.interval} | _plain(caught),
        )


def _together(runs: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return the scores of several runs, those with D and those without."""
    one, other = (np.concatenate(world) for world in zip(*runs, strict=True))
    return one, other


def _plain(evidence: Evidence) -> dict[str, Any]:
    """Return evidence as plain values."""
    return {
        "epsilon_at_least": evidence.epsilon,
        "delta_at_least": evidence.points[-1].found,
        "share": evidence.share,
        "curve": [point._asdict() for point in evidence.points],
        "refuted": evidence.violated,
    }


def overall(findings: Sequence[Finding]) -> str:
    """Return the verdict of an audit: the worst of its findings."""
    verdicts = {finding.verdict for finding in findings}
    return next(each for each in (REFUTED, NO_POWER, CONSISTENT) if each in verdicts)


def weakest(findings: Sequence[Finding]) -> Finding:
    """Return what measured the smallest part of the epsilon that is claimed, of those about epsilon."""
    on_epsilon = [finding for finding in findings if finding.about == "epsilon"]
    return min(on_epsilon, key=lambda finding: finding.measured / finding.guarantee.epsilon)


@dataclass(frozen=True)
class AuditCommand:
    """The command that audits a question.

    Attributes:
        spec: the question.
    """

    spec: QuestionInfo

    def run(self, arguments: argparse.Namespace) -> None:
        """Replay and attack, print what was found, and end with the verdict."""
        began = time.monotonic()
        try:
            if checks.integer("trials", arguments.trials, minimum=FEWEST) % 2:
                raise ValueError(f"trials must be even, half of them for each input, got {arguments.trials}")
            found = replays(self.spec, arguments.key)
            found += self._tried(loaded(self.spec.audit.path) if self.spec.audit else (), arguments)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        say(f"audited in {time.monotonic() - began:.0f} s")
        report(f"audit of {self.spec.word}", {"question": self.spec.word}, found, arguments)

    def _tried(self, attacks: Sequence[Attack], arguments: argparse.Namespace) -> list[Finding]:
        """Run the attacks; where a control is missed, with more trials."""
        found = list[Finding]()
        workers = workers_for(min(cores(), MOST_WORKERS) if arguments.workers is None else arguments.workers, 0)
        with ExitStack() as stack:
            crew = cache(lambda: stack.enter_context(Crew(workers, run_share).working()) if workers > 1 else None)
            for attack in attacks:
                say(f"attack: {attack.name}")
                trying = Trying(
                    spec=self.spec,
                    trials=arguments.trials,
                    key_file=arguments.key,
                    wrong=WRONG / len(attacks),
                    crew=crew,
                )
                one = trying.find(attack)
                if one.verdict == NO_POWER:
                    say(f"{attack.name}: its control was not caught, so {MORE} times as many trials follow")
                    one = replace(trying, trials=MORE * trying.trials).find(attack)
                found.append(one)
        return found


HEADINGS = ("attack", "mechanism", "epsilon", "measured", "delta", "share", "verdict")

MEANING = (
    "Replays are exact: what one person moves, in units of the noise, against what is claimed. Of trials, measured is "
    f"the lower end of a 95% interval, and all bounds hold together with probability {1 - WRONG:.2%}. Share: how much "
    "of what the guarantee allows was shown; above 1 refutes it.",
    "An audit can refute a guarantee, and cannot prove it: the proofs are in docs/proofs. A control is the same "
    "mechanism with a larger budget than is claimed; where it is not caught, the audit has no power and shows nothing.",
)


def report(
    title: str,
    about: Mapping[str, Any],
    findings: Sequence[Finding],
    arguments: argparse.Namespace,
    notes: Sequence[str] = (),
) -> None:
    """Print what was found, as a table or as JSON, and end with the verdict.

    Raises:
        RunError: a guarantee is refuted.
        InconclusiveError: a control was not caught.
    """
    least = weakest(findings)
    if arguments.json:
        said = {
            **about,
            "claimed_epsilon": least.guarantee.epsilon,
            "measured_epsilon": least.measured,
            "unit": str(least.guarantee.unit),
            "weakest_attack": least.name,
            "trials": arguments.trials,
            "confidence": 1 - WRONG,
            "verdict": overall(findings),
            "attacks": [finding.to_dict() for finding in findings],
        }
        print(json.dumps(said, indent=2))
    else:
        texts = dict.fromkeys(finding.text if finding.control is None else f"{finding.name}: {finding.text}"
                              for finding in findings)  # fmt: skip
        show(title, _table(findings), [*notes, *texts, *MEANING])
    _conclude(findings)


def _table(findings: Sequence[Finding]) -> Table:
    """Return a line for each finding, and one for its control."""
    table = Table()
    for number, heading in enumerate(HEADINGS):
        last = number == len(HEADINGS) - 1  # a verdict must not be cut
        table.add_column(heading, justify="right" if 2 <= number <= 5 else "left", no_wrap=last)
    for finding in findings:
        claim, method = finding.guarantee, finding.method or "as it is"
        numbers = claim.epsilon, finding.measured, claim.delta, finding.share
        table.add_row(finding.name, method, *(f"{number:.3g}" for number in numbers), finding.verdict)
        if (control := finding.control) is not None:
            given = ", ".join(f"{name} {value:g}" for name, value in control["options"].items())
            numbers = claim.epsilon, control["measured_epsilon"], claim.delta, control["share"]
            caught = "caught" if control["refuted"] else "missed"
            table.add_row("", f"control: {given}", *(f"{number:.3g}" for number in numbers), caught)
    return table


def _conclude(findings: Sequence[Finding]) -> None:
    """Say that nothing speaks against the guarantee, or end with what does."""
    verdict = overall(findings)
    named = ", ".join(finding.name for finding in findings if finding.verdict == verdict)
    if verdict == REFUTED:
        raise RunError(f"the guarantee is refuted by {named}: please report it")
    if verdict == NO_POWER:
        raise InconclusiveError(f"the audit has no power: controls of {named} were not caught; more --trials may do it")
    say(f"{CONSISTENT}: nothing was found beyond what the guarantee allows")
