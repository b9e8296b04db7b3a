"""What an attack has found: on the transform as it is, and on one that promises less, which it must catch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.audit.evidence import Evidence, measure
from privstream.pipelines.audit.trials import Trials
from privstream.pipelines.noise_key import noise_source
from privstream.pipelines.questions.attack import Attack
from privstream.pipelines.questions.spec import METHOD, QuestionSpec

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
