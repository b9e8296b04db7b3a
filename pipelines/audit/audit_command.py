"""`privstream audit QUESTION`: replays the worst pair of neighbours, and attacks tests in secret by many trials."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any, Literal

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.run_identity import noise_source
from privstream.pipelines.audit.attacks import PERIOD, Attack, Trials
from privstream.pipelines.audit.evidence import Evidence, measure
from privstream.pipelines.audit.replay import claim_of, faults, measured, share
from privstream.pipelines.audit.worst import RUN, RUNS, worst_pair
from privstream.pipelines.command import InconclusiveError, RunError, UsageError
from privstream.pipelines.console import show
from privstream.pipelines.model.question import METHOD, QuestionInfo, loaded
from privstream.pipelines.terminal import say
from rich.table import Table

WRONG = 1e-4
"""Probability with which some bound from trials may be wrong, of all attacks of an audit together."""

ITEMS_AT_ONCE = 20_000
"""Trials with D in one run, where they are items."""

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
        name, text: in a few words; what the inputs are, and what the adversary looks at.
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
        claim = {name: getattr(self.guarantee, name) for name in ("epsilon", "delta", "proof")}
        return {
            "attack": self.name,
            "about": self.about,
            "text": self.text,
            "method": self.method or None,
            "claimed": claim | {"unit": str(self.guarantee.unit)},
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
    guarantee = transform.guarantee if claim is None else claim
    shown, _, _ = worst_pair(word, transform).replay()
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


def tried(spec: QuestionInfo, attack: Attack, trials: int, key_file: str | None, wrong: float = WRONG) -> Finding:
    """Run an attack on the transform and on its control.

    Args:
        spec: the question.
        attack: the attack.
        trials: as many as are asked for.
        key_file: file with the noise key, or None for a new key each time.
        wrong: probability with which some bound may be wrong.

    Raises:
        ValueError: the noise key cannot be used.
        RunError: a run failed.
    """
    say(f"attack: {attack.name}")
    number = attack.times * trials
    at_once = trials if attack.told_by == PERIOD else min(number, ITEMS_AT_ONCE * attack.one_in)
    made, seen = list[Trials](), list[Evidence]()
    for name, options in (("claimed", attack.options), ("control", {**attack.options, **attack.control})):
        noise = noise_source(key_file, None, f"audit {spec.word} {attack.name} {name}")
        runs = [
            Trials(spec, attack, options, min(at_once, number - first), noise, first)
            for first in range(0, number, at_once)
        ]
        made.append(runs[0])
        one, other = zip(*(run.run() for run in runs), strict=True)
        seen.append(measure(np.concatenate(one), np.concatenate(other), made[0].guarantee, wrong))
    shown, caught = seen
    return Finding(
        name=attack.name,
        text=attack.text,
        method=getattr(made[0].transform, METHOD, ""),
        guarantee=made[0].guarantee,
        measured=shown.interval,
        share=shown.share,
        verdict=REFUTED if shown.violated else CONSISTENT if caught.violated else NO_POWER,
        found=shown.to_dict(),
        about=attack.about,
        control={"options": dict(attack.control), "measured_epsilon": caught.interval} | caught.to_dict(),
    )


def audit(spec: QuestionInfo, trials: int, key: str | None, json: bool) -> None:
    """Replay the worst pairs of a question, of files and of streams, attack it, and end with the verdict."""
    began, found = time.monotonic(), list[Finding]()
    attacks: Sequence[Attack] = loaded(spec.audit.path) if spec.audit else ()
    try:
        if checks.integer("trials", trials, minimum=FEWEST) % 2:
            raise ValueError(f"trials must be even, half of them for each input, got {trials}")
        for name, options in RUNS.get(spec.word, {}).items():
            noise = noise_source(key, None, f"audit {spec.word} {name}")
            streamed = spec.transform_class(**{**RUN, **options}, noise=noise)
            for form, transform in (("file", streamed.over_files()), ("stream", streamed)):
                say(f"replay: {name}, {form}")
                found.append(replayed(f"{name}, {form}", spec.word, transform))
        found += [tried(spec, attack, trials, key, WRONG / len(attacks)) for attack in attacks]
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    say(f"audited in {time.monotonic() - began:.0f} s")
    report(f"audit of {spec.word}", {"question": spec.word}, found, trials, json=json)


HEADINGS = ("attack", "mechanism", "epsilon", "measured", "delta", "share", "verdict")
TEXTS = ("attack", "mechanism", "verdict")

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
    trials: int,
    *,
    json: bool,
    notes: Sequence[str] = (),
) -> None:
    """Print what was found, as a table or as JSON, and end with the verdict.

    Raises:
        RunError: a guarantee is refuted.
        InconclusiveError: a control was not caught.
    """
    verdicts = {finding.verdict for finding in findings}
    verdict = next(each for each in (REFUTED, NO_POWER, CONSISTENT) if each in verdicts)
    if json:
        on_epsilon = [finding for finding in findings if finding.about == "epsilon"]
        least = min(on_epsilon, key=lambda finding: finding.measured / finding.guarantee.epsilon)
        said = {
            **about,
            "claimed_epsilon": least.guarantee.epsilon,
            "measured_epsilon": least.measured,
            "unit": str(least.guarantee.unit),
            "weakest_attack": least.name,
            "trials": trials,
            "confidence": 1 - WRONG,
            "verdict": verdict,
            "attacks": [finding.to_dict() for finding in findings],
        }
        print(dumps(said, indent=2))
    else:
        texts = [one.text if one.control is None else f"{one.name}: {one.text}" for one in findings]
        show(title, _table(findings), [*notes, *dict.fromkeys(texts), *MEANING])
    named = ", ".join(finding.name for finding in findings if finding.verdict == verdict)
    if verdict == REFUTED:
        raise RunError(f"the guarantee is refuted by {named}: please report it")
    if verdict == NO_POWER:
        raise InconclusiveError(f"the audit has no power: controls of {named} were not caught; more --trials may do it")
    say(f"{CONSISTENT}: nothing was found beyond what the guarantee allows")


def _table(findings: Sequence[Finding]) -> Table:
    """Return a line for each finding, and one for its control."""
    table = Table()
    for heading in HEADINGS:
        cut = heading != "verdict"
        table.add_column(heading, justify="left" if heading in TEXTS else "right", no_wrap=not cut)
    for finding in findings:
        claim, control = finding.guarantee, finding.control
        lines = [(finding.name, finding.method or "as it is", finding.measured, finding.share, finding.verdict)]
        if control is not None:
            given = ", ".join(f"{name} {value:g}" for name, value in control["options"].items())
            caught = "caught" if control["refuted"] else "missed"
            lines.append(("", f"control: {given}", control["measured_epsilon"], control["share"], caught))
        for name, mechanism, epsilon, used, verdict in lines:
            numbers = (f"{number:.3g}" for number in (claim.epsilon, epsilon, claim.delta, used))
            table.add_row(name, mechanism, *numbers, verdict)
    return table
