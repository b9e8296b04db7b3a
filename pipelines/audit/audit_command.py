"""`privstream audit QUESTION`: attacks the mechanisms of a question, and says what they show about one person."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from privstream.mechanisms import checks
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.run_identity import noise_source
from privstream.pipelines.audit.attacks import Attack
from privstream.pipelines.audit.evidence import Evidence, measure
from privstream.pipelines.audit.trials import Trials
from privstream.pipelines.command import InconclusiveError, RunError, UsageError
from privstream.pipelines.console import show
from privstream.pipelines.plot.picture_spec import check_picture, write_picture
from privstream.pipelines.questions.spec import METHOD, QuestionSpec, loaded
from privstream.pipelines.terminal import say
from rich.table import Table

WRONG = 1e-4
"""Probability with which some bound on the transforms of an audit may be wrong, of all its attacks together."""

CONSISTENT, REFUTED, NO_POWER = "consistent", "refuted", "no power"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an attack has found.

    Attributes:
        attack: the attack.
        method: of the transform, empty if there is but one.
        guarantee: what is claimed of the transform.
        real: what the attack proves about it.
        control: what the same attack proves about the control, against the same claim.
    """

    attack: Attack
    method: str
    guarantee: PrivacyGuarantee
    real: Evidence
    control: Evidence

    @property
    def verdict(self) -> str:
        """What follows."""
        if self.real.violated:
            return REFUTED
        return CONSISTENT if self.control.violated else NO_POWER

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values for JSON."""
        claim = self.guarantee
        return {
            "attack": self.attack.name,
            "text": self.attack.text,
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
        }


def find(spec: QuestionSpec, attack: Attack, attacks: int, arguments: argparse.Namespace) -> Finding:
    """Run an attack, one of so many, on the transform and on its control.

    Raises:
        ValueError: the noise key cannot be used.
        RunError: a run failed.
    """

    def trials(name: str, options: Mapping[str, Any]) -> Trials:
        noise = noise_source(arguments.noise_key_file, None, f"audit {spec.word} {attack.name} {name}")
        return Trials(spec, attack, options, arguments.trials, noise)

    real, control = trials("claimed", attack.options), trials("control", {**attack.options, **attack.control})
    guarantee = real.guarantee
    found = [measure(*each.run(), guarantee, WRONG / attacks) for each in (real, control)]
    method = getattr(real.transform, METHOD, "")
    return Finding(attack=attack, method=method, guarantee=guarantee, real=found[0], control=found[1])


def overall(findings: Sequence[Finding]) -> str:
    """Return the verdict of an audit: the worst of its attacks."""
    verdicts = {finding.verdict for finding in findings}
    return next(each for each in (REFUTED, NO_POWER, CONSISTENT) if each in verdicts)


def _plain(evidence: Evidence) -> dict[str, Any]:
    """Return evidence as plain values."""
    return {
        "epsilon_at_least": evidence.epsilon,
        "delta_at_least": evidence.points[-1].found,
        "share": evidence.share,
        "curve": [point._asdict() for point in evidence.points],
        "refuted": evidence.violated,
    }


FEWEST = 400
"""Fewer trials catch no control."""

HEADINGS = ("attack", "mechanism", "epsilon", "at least", "delta", "at least", "share", "verdict")

MEANING = (
    f"At least: lower bounds; all those of the mechanisms as they are hold together with probability {1 - WRONG:.2%}. "
    "Epsilon is bounded at the delta that is claimed, delta at the epsilon that is claimed. Share: how much of what "
    "the guarantee allows was measured, where it is most along the whole privacy curve; above 1 refutes the guarantee.",
    "An audit can refute a guarantee, and cannot prove it: it says what these attacks found, in so many trials, with "
    "these parameters. The proofs are in docs/proofs. A control is the same mechanism with a larger budget than is "
    "claimed; where it is not caught, the audit has no power and shows nothing.",
)


@dataclass(frozen=True)
class AuditCommand:
    """The command that attacks the transform of a question."""

    spec: QuestionSpec

    def run(self, arguments: argparse.Namespace) -> None:
        """Run all attacks, print and draw what they found, and end with the verdict."""
        attacks: Sequence[Attack] = () if self.spec.audit is None else loaded(self.spec.audit.path)
        try:
            if checks.integer("trials", arguments.trials, minimum=FEWEST) % 2:
                raise ValueError(f"trials must be even, half of them for each input, got {arguments.trials}")
            if arguments.output is not None:
                check_picture(arguments.output)
            findings = self._find(attacks, arguments)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error
        if arguments.json:
            print(json.dumps(self._describe(findings, arguments.trials), indent=2))
        else:
            self._print(findings, arguments.trials)
        if arguments.output is not None:
            write_picture(arguments.output, lambda: partial(self._draw, findings, arguments.trials))
        _conclude(findings)

    def _find(self, attacks: Sequence[Attack], arguments: argparse.Namespace) -> list[Finding]:
        """Run all attacks."""
        began, findings = time.monotonic(), []
        for number, attack in enumerate(attacks, start=1):
            say(f"attack {number} of {len(attacks)}: {attack.name}")
            findings.append(find(self.spec, attack, len(attacks), arguments))
        say(f"audited in {time.monotonic() - began:.0f} s")
        return findings

    def _title(self, trials: int) -> str:
        """Return what was audited."""
        return f"audit of {self.spec.word}, {trials:,} trials of each attack"

    def _describe(self, findings: Sequence[Finding], trials: int) -> dict[str, Any]:
        """Return the audit for machines."""
        return {
            "question": self.spec.word,
            "trials": trials,
            "confidence": 1 - WRONG,
            "verdict": overall(findings),
            "attacks": [finding.to_dict() for finding in findings],
        }

    def _draw(self, findings: Sequence[Finding], trials: int, stream: BinaryIO, format: str) -> None:
        """Draw the audit."""
        importlib.import_module("privstream.pipelines.audit.picture").draw(
            stream, format, self._title(trials), findings
        )

    def _print(self, findings: Sequence[Finding], trials: int) -> None:
        """Print a line for each attack, and one for its control."""
        table = Table()
        for number, heading in enumerate(HEADINGS):
            table.add_column(heading, justify="right" if 2 <= number <= 6 else "left")
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
                numbers = claim.epsilon, evidence.epsilon, claim.delta, evidence.points[-1].found, evidence.share
                table.add_row(name, mechanism, *(f"{number:.3g}" for number in numbers), verdict)
            table.add_section()
        texts = [f"{finding.attack.name}: {finding.attack.text}" for finding in findings]
        show(self._title(trials), table, [*texts, *MEANING])


def _options(options: Any) -> str:
    """Return arguments as they are given."""
    return ", ".join(f"{name} {value:g}" for name, value in options.items())


def _conclude(findings: Sequence[Finding]) -> None:
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
        raise InconclusiveError(
            f"the audit has no power: the controls of {named[NO_POWER]} were not caught; more --trials may help"
        )
    say(f"{CONSISTENT}: nothing was found beyond what the guarantee allows, and all controls were caught")
