"""`privstream audit QUESTION`: attacks on the transform of a question, and what they prove about its guarantee."""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from privstream.mechanisms import checks
from privstream.pipelines.audit.finding import CONSISTENT, NO_POWER, REFUTED, WRONG, Finding, find, overall
from privstream.pipelines.command import InconclusiveError, RunError, UsageError
from privstream.pipelines.plot.rows import check_picture, write_picture
from privstream.pipelines.questions.attack import Attack
from privstream.pipelines.questions.page import show
from privstream.pipelines.questions.spec import QuestionSpec
from privstream.pipelines.terminal import say
from rich.table import Table

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
        attacks: Sequence[Attack] = importlib.import_module(self.spec.module("attacks")).ATTACKS
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
