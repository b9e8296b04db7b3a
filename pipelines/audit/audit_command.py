"""`privstream audit QUESTION`: attacks the mechanisms of a question, and says what they show about one person."""

from __future__ import annotations

import argparse
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import PrivacyCurve, noise_curve
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.run_identity import noise_source
from privstream.pipelines.audit.attacks import EPSILON, PERIOD, Attack
from privstream.pipelines.audit.evidence import Evidence, measure, of_crowd
from privstream.pipelines.audit.fits import crowd_size, fit, law_of, one_in
from privstream.pipelines.audit.hidden_tests import hidden_test_runs
from privstream.pipelines.audit.trials import Trials, run_all, run_share
from privstream.pipelines.audit.whole_run import FEWEST, trials_at_once, trials_of, whole_runs
from privstream.pipelines.command import InconclusiveError, RunError, UsageError
from privstream.pipelines.console import show
from privstream.pipelines.model.question import METHOD, QuestionInfo, loaded
from privstream.pipelines.runners.processes import Crew, cores, workers_for
from privstream.pipelines.terminal import say
from rich.table import Table
from typing_extensions import override

WRONG = 1e-4
"""Probability with which some bound on the transforms of an audit may be wrong, of all its attacks together."""

MOST_WORKERS = 8
"""Processes that share the trials, unless more are asked for: each needs memory for events of its own."""

ITEMS_AT_ONCE = 20_000
"""Trials with D in one run, where they are items."""

TIMES = (2, 3, 4, 6, 8, 12, 16, 24)
"""How many times as many trials an audit may ask for, where a control was missed."""

MOST_TIMES = 8
"""How many times as many trials follow where a control was missed: that depends on controls alone."""

CONSISTENT, REFUTED, NO_POWER = "consistent", "refuted", "no power"


class Crowds(NamedTuple):
    """What is published about a crowd and without it.

    Attributes:
        people: in the crowd.
        real: transcripts of the transform, with the crowd and without it, (trials, numbers) each; those with it are
            few.
        control: those of the control.
    """

    people: int
    real: tuple[Floats, Floats]
    control: tuple[Floats, Floats]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an attack has found.

    Attributes:
        attack: the attack.
        method: of the transform, empty if there is but one.
        guarantee: what is claimed of the transform.
        real: what the attack proves about it.
        control: what the same attack proves about the control, against the same claim.
        enough: with how many times as many trials the control would be caught, about; None if with none of `TIMES`.
    """

    attack: Attack
    method: str
    guarantee: PrivacyGuarantee
    real: Evidence
    control: Evidence
    enough: int | None = 1

    @property
    def verdict(self) -> str:
        """What follows."""
        if self.real.violated:
            return REFUTED
        return CONSISTENT if self.control.violated else NO_POWER

    def to_dict(self, trials: int) -> dict[str, Any]:
        """Return all of it as plain values for JSON, of an audit with so many trials."""
        claim = self.guarantee
        return {
            "attack": self.attack.name,
            "about": self.attack.about,
            "text": self.attack.told,
            "units": self.attack.units,
            "method": self.method or None,
            "claimed": {
                "epsilon": claim.epsilon,
                "delta": claim.delta,
                "unit": str(claim.unit),
                "neighbouring": claim.neighbouring,
                "proof": claim.proof,
            },
            "found": _plain(self.real),
            "control": {"options": dict(self.attack.control)} | _plain(self.control),
            "verdict": self.verdict,
            "enough_trials": self.enough and self.enough * trials,
        }


def enough_for(found: Callable[[int], Evidence]) -> int | None:
    """Return how many times as many trials catch a control, about: one step more than if they say the same; None if
    none of `TIMES` do.

    Args:
        found: what is found if each trial is repeated so many times.
    """
    if found(1).violated:
        return 1
    return next((more for times, more in pairwise(TIMES) if found(times).violated), None)


def compare(attack: Attack, method: str, claim: PrivacyGuarantee, crowds: Crowds, wrong: float) -> Finding:
    """Return what the transcripts of a crowd say of what is claimed."""
    curve, apart = curve_of(claim), attack.transcript is not None and attack.transcript.apart

    def found(world: tuple[Floats, Floats], times: int = 1) -> Evidence:
        one, other = (np.repeat(each, times, axis=0) for each in world)
        return of_crowd(fit(one, other, crowds.people, curve, claim.delta, wrong, apart=apart), claim)

    return Finding(
        attack=attack,
        method=method,
        guarantee=claim,
        real=found(crowds.real),
        control=found(crowds.control),
        enough=enough_for(partial(found, crowds.control)),
    )


def curve_of(claim: PrivacyGuarantee) -> PrivacyCurve:
    """Return the curve of what is claimed, of one law of noise."""
    return claim.known_curve if law_of(claim.known_curve) else noise_curve(claim.epsilon, claim.delta)


@dataclass(frozen=True, kw_only=True)
class Trying:
    """How attacks are run.

    Attributes:
        spec: the question.
        trials: of each attack.
        key_file: file with the noise key, or None for a new key each time.
        wrong: probability with which some bound of one attack may be wrong.
        crew: returns processes that share the trials, which it starts when they are first wanted; None for this one
            alone.
        claim: what is claimed; None for what the transform promises.
    """

    spec: QuestionInfo
    trials: int
    key_file: str | None
    wrong: float
    crew: Callable[[], Crew | None] = lambda: None
    claim: PrivacyGuarantee | None = None

    def find(self, attack: Attack) -> Finding:
        """Run an attack on the transform and on its control.

        Raises:
            ValueError: the noise key cannot be used.
            RunError: a run failed.
        """
        made = self._trials(attack, attack.options, 2, "claimed")
        claim = made.guarantee if self.claim is None else self.claim
        method = getattr(made.transform, METHOD, "")
        if attack.part is not None:
            claim = attack.part(made.transform)
        if attack.transcript is not None:
            return compare(attack, method, claim, self.crowds(attack, claim), self.wrong)
        number = attack.times * self.trials
        at_once = self.trials if attack.told_by == PERIOD else min(number, ITEMS_AT_ONCE * attack.one_in)
        real, control = self._run(attack, number, at_once, people=attack.units, part=attack.one_in)

        def found(worlds: tuple[Floats, Floats], times: int = 1) -> Evidence:
            one, other = (np.repeat(world, times) for world in worlds)
            return measure(one, other, claim, self.wrong, attack.units)

        return Finding(
            attack=attack,
            method=method,
            guarantee=claim,
            real=found(real),
            control=found(control),
            enough=enough_for(partial(found, control)),
        )

    def crowds(self, attack: Attack, claim: PrivacyGuarantee) -> Crowds:
        """Run an attack on all that is published, and return the transcripts.

        Raises:
            ValueError: the noise key cannot be used.
            RunError: a run failed.
        """
        assert attack.transcript is not None
        curve = curve_of(claim)
        people, part = crowd_size(curve, attack.transcript.counted), one_in(curve)
        number = trials_of(attack.transcript, self.trials, people, part)
        at_once = trials_at_once(attack.transcript, people, part)
        return Crowds(people, *self._run(attack, number, at_once, ", a crowd", people, part))

    def _run(
        self, attack: Attack, number: int, at_once: int, suffix: str = "", people: int = 1, part: int = 2
    ) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """Run so many trials, a part of them at once, and return what was found of the transform and of its control."""
        both = [(options, self.noise(attack, f"{name}{suffix}")) for options, name in _both(attack)]
        runs = [
            Trials(self.spec, attack, options, min(at_once, number - first), noise, people, first, part)
            for first in range(0, number, at_once)
            for options, noise in both
        ]
        found = run_all(runs, self.crew())
        return _put_together(found[::2]), _put_together(found[1::2])

    def noise(self, attack: Attack, name: str) -> NoiseSource:
        """Return the noise of the trials of an attack that have such a name."""
        return noise_source(self.key_file, None, f"audit {self.spec.word} {attack.name} {name}")

    def _trials(self, attack: Attack, options: Mapping[str, Any], number: int, name: str) -> Trials:
        return Trials(self.spec, attack, options, number, self.noise(attack, name))


def _put_together(runs: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return the transcripts of several runs, those with the crowd and those without it."""
    one, other = (np.concatenate(world) for world in zip(*runs, strict=True))
    return one, other


def _both(attack: Attack) -> tuple[tuple[Mapping[str, Any], str], tuple[Mapping[str, Any], str]]:
    """Return arguments and name of the transform that an attack is on, and of its control."""
    return (attack.options, "claimed"), ({**attack.options, **attack.control}, "control")


def attacks_on(spec: QuestionInfo, epsilon: float | None = None) -> Sequence[Attack]:
    """Return the attacks on a question, with so much of a budget; None for that of each attack.

    Raises:
        ValueError: it is not finite and > 0.
    """
    own: Sequence[Attack] = () if spec.audit is None else loaded(spec.audit.path)
    given = EPSILON if epsilon is None else checks.positive("epsilon", epsilon)
    scaled = own if epsilon is None else [attack.at(given) for attack in own]
    return (*scaled, *hidden_test_runs(spec, given), *whole_runs(spec, given))


def overall(findings: Sequence[Finding]) -> str:
    """Return the verdict of an audit: the worst of its attacks."""
    verdicts = {finding.verdict for finding in findings}
    return next(each for each in (REFUTED, NO_POWER, CONSISTENT) if each in verdicts)


def weakest(findings: Sequence[Finding]) -> Finding:
    """Return the attack that measured the smallest part of the epsilon that is claimed, of those on epsilon."""
    on_epsilon = [finding for finding in findings if finding.attack.about == "epsilon"]
    return min(on_epsilon, key=lambda finding: finding.real.measured / finding.guarantee.epsilon)


def _plain(evidence: Evidence) -> dict[str, Any]:
    """Return evidence as plain values."""
    model = {} if evidence.fit is None else {"model": evidence.fit.law, "model_at_least": evidence.fit.least}
    return {
        "measured_epsilon": evidence.measured,
        **model,
        "epsilon_at_least": evidence.epsilon,
        "delta_at_least": evidence.points[-1].found,
        "share": evidence.share,
        "curve": [point._asdict() for point in evidence.points],
        "refuted": evidence.violated,
    }


UNSEEN = f"{TIMES[-2]} times as many --trials would not catch them either, if they show the same"

HEADINGS = ("attack", "mechanism", "epsilon", "measured", "at least", "delta", "at least", "share", "verdict")

MEANING = (
    f"At least: lower bounds; all those of the mechanisms as they are hold together with probability {1 - WRONG:.2%}. "
    "Epsilon is bounded at the delta that is claimed, delta at the epsilon that is claimed. Measured: lower end of a "
    "95% interval of epsilon, each by itself; where a crowd is seen, by a model of the noise. Share: "
    "how much of what the guarantee allows was shown, where it is most along the privacy curve, and by the model; "
    "above 1 refutes the guarantee.",
    "An audit can refute a guarantee, and cannot prove it: it says what these attacks found, in so many trials, with "
    "these parameters. The proofs are in docs/proofs. A control is the same mechanism with a larger budget than is "
    "claimed; where it is not caught, the audit has no power and shows nothing.",
)


class Audit(ABC):
    """Attacks, and what they found about claims."""

    def run(self, arguments: argparse.Namespace) -> None:
        """Run all attacks, print and draw what they found, and end with the verdict."""
        try:
            attacks = self._attacks()
            if checks.integer("trials", arguments.trials, minimum=FEWEST) % 2:
                raise ValueError(f"trials must be even, half of them for each input, got {arguments.trials}")
            findings = self._find(attacks, arguments)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        if arguments.json:
            print(json.dumps(self._describe(findings, arguments.trials), indent=2))
        else:
            self._print(findings, arguments.trials)
        _conclude(findings, arguments.trials)

    @abstractmethod
    def _attacks(self) -> Sequence[Attack]:
        """Return the attacks, whose names differ."""

    @abstractmethod
    def _trying(self, attack: Attack, arguments: argparse.Namespace, wrong: float) -> Trying:
        """Return how an attack is run, of which some bound may be wrong with such a probability."""

    @abstractmethod
    def _title(self, trials: int) -> str:
        """Return what was audited."""

    @property
    @abstractmethod
    def _about(self) -> Mapping[str, Any]:
        """What was audited, for machines."""

    @property
    def _notes(self) -> Sequence[str]:
        """What else there is to say below the table."""
        return ()

    def _find(self, attacks: Sequence[Attack], arguments: argparse.Namespace) -> list[Finding]:
        """Run all attacks."""
        began, findings = time.monotonic(), list[Finding]()
        wrong = WRONG / len(attacks)
        workers = workers_for(min(cores(), MOST_WORKERS) if arguments.workers is None else arguments.workers, 0)
        with ExitStack() as stack:
            crew = cache(lambda: stack.enter_context(Crew(workers, run_share).working()) if workers > 1 else None)
            for number, attack in enumerate(attacks, start=1):
                say(f"attack {number} of {len(attacks)}: {attack.name}")
                trying = replace(self._trying(attack, arguments, wrong), crew=crew)
                found = trying.find(attack)
                if found.verdict == NO_POWER and found.enough is not None and found.enough <= MOST_TIMES:
                    say(f"{attack.name}: its control was not caught, so {found.enough} times as many trials follow")
                    found = replace(trying, trials=found.enough * trying.trials).find(attack)
                findings.append(found)
        say(f"audited in {time.monotonic() - began:.0f} s")
        return findings

    def _describe(self, findings: Sequence[Finding], trials: int) -> dict[str, Any]:
        """Return the audit for machines."""
        least = weakest(findings)
        return {
            **self._about,
            "claimed_epsilon": least.guarantee.epsilon,
            "measured_epsilon": least.real.measured,
            "unit": str(least.guarantee.unit),
            "weakest_attack": least.attack.name,
            "trials": trials,
            "confidence": 1 - WRONG,
            "verdict": overall(findings),
            "attacks": [finding.to_dict(trials) for finding in findings],
        }

    def _print(self, findings: Sequence[Finding], trials: int) -> None:
        """Print a line for each attack, and one for its control."""
        table = Table()
        for number, heading in enumerate(HEADINGS):
            last = number == len(HEADINGS) - 1  # a verdict must not be cut
            table.add_column(heading, justify="right" if 2 <= number <= 7 else "left", no_wrap=last)
        for finding in findings:
            claim, control = finding.guarantee, finding.attack.control
            lines = (
                (finding.attack.name, finding.method or "as it is", finding.real, finding.verdict),
                (
                    "",
                    f"control: {_options(control)}",
                    finding.control,
                    "caught" if finding.control.violated else "missed",
                ),
            )
            for name, mechanism, evidence, verdict in lines:
                bounds = evidence.measured, evidence.epsilon, claim.delta, evidence.points[-1].found, evidence.share
                numbers = claim.epsilon, *bounds
                table.add_row(name, mechanism, *(f"{number:.3g}" for number in numbers), verdict)
            table.add_section()
        texts = [f"{finding.attack.name}: {finding.attack.told}" for finding in findings]
        show(self._title(trials), table, [*self._notes, *texts, *MEANING])


@dataclass(frozen=True)
class AuditCommand(Audit):
    """The command that attacks the transform of a question.

    Attributes:
        spec: the question.
        epsilon: of the attacks on epsilon; None for that of each attack, mostly 2.
    """

    spec: QuestionInfo
    epsilon: float | None = field(default=None, kw_only=True)

    @override
    def _attacks(self) -> Sequence[Attack]:
        return attacks_on(self.spec, self.epsilon)

    @override
    def _trying(self, attack: Attack, arguments: argparse.Namespace, wrong: float) -> Trying:
        return Trying(
            spec=self.spec,
            trials=arguments.trials,
            key_file=arguments.key,
            wrong=wrong,
            claim=self._claim(),
        )

    def _claim(self) -> PrivacyGuarantee | None:
        """Return what is claimed; None for what each transform promises."""
        return None

    @override
    def _title(self, trials: int) -> str:
        return f"audit of {self.spec.word}, {trials:,} trials of each attack"

    @property
    @override
    def _about(self) -> Mapping[str, Any]:
        return {"question": self.spec.word}


def _options(options: Any) -> str:
    """Return arguments as they are given."""
    return ", ".join(f"{name} {value:g}" for name, value in options.items())


def _conclude(findings: Sequence[Finding], trials: int) -> None:
    """Say that nothing speaks against the guarantee.

    Raises:
        RunError: it is refuted.
        InconclusiveError: a control was not caught.
    """
    named = {
        verdict: ", ".join(finding.attack.name for finding in findings if finding.verdict == verdict)
        for verdict in (REFUTED, NO_POWER)
    }
    verdict = overall(findings)
    if verdict == REFUTED:
        raise RunError(f"the guarantee is refuted by {named[REFUTED]}: please report it")
    if verdict == NO_POWER:
        needed = [finding.enough for finding in findings if finding.verdict == NO_POWER]
        times = [each for each in needed if each is not None]
        advice = f"--trials {max(times) * trials} may catch them" if len(times) == len(needed) else UNSEEN
        raise InconclusiveError(f"the audit has no power: the controls of {named[NO_POWER]} were not caught; {advice}")
    say(f"{CONSISTENT}: nothing was found beyond what the guarantee allows, and all controls were caught")
