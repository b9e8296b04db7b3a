"""All sentences about numbers, made of plain facts: counters of a run, its guarantee file, and what budgets say."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from privstream.mechanisms.accuracy import Limit
from privstream.mechanisms.privacy.units import PERSON, PrivacyUnit, in_words
from privstream.mechanisms.views.counts import BOUND, regime
from privstream.pipelines.model.catalogue import QUESTIONS

SEVERAL = 3
"""Reasons, or questions, that a line names."""

FIELDS = {"user": "a user", "item": "an item", "value": "a value"}
RULES = {
    "missing": ("without {}", "--{}"),
    "type": ("with {} that is neither text nor an integer", "--{}"),
    "encoding": ("with {} that is not in the encoding of the file", "--encoding"),
    "long": ("with {} that is too long", "--{}"),
}
FAULTS = {
    f"{field}_{rule}": (words.format(name), option.format(field))
    for field, name in FIELDS.items()
    for rule, (words, option) in RULES.items()
} | {
    "time_missing": ("without a time", "--time"),
    "time_type": ("with a time that is neither a number nor text", "--time"),
    "time_syntax": ("with a time that is not ISO 8601", "--time-format"),
    "time_zone": ("with a time without an offset from UTC", "--time-zone"),
    "time_skipped": ("with a time that the clocks of the zone skip", "--time-zone"),
    "time_unit": ("with a time that is a plain number", "--time-unit"),
    "time_finite": ("with a time that is not finite", "--time"),
    "time_range": ("with a time outside of 1970 to 2200", "--time-unit"),
    "value_type": ("with a value that is not a number", "--decimal"),
    "value_finite": ("with a value that is not finite", "--value"),
    "where_type": ("with a field of another type than the condition needs", "--where"),
    "where_finite": ("with a number that is not finite in the condition", "--where"),
    "where_encoding": ("with a condition's field that is not in the encoding of the file", "--encoding"),
    "where_long": ("with a condition's field that is too long", "--where"),
    "point_type": ("with a point that is not a whole number", "--user"),
    "malformed_line": ("in lines that break the rules of their format", "--input-format"),
    "long_line": ("in lines that are too long", "--input-format"),
    "carriage_return": ("with a carriage return that ends no line", "--quote"),
    "malformed_record": ("that are not one JSON object", "--dead-letter"),
}
"""Why a row is malformed, by how the name of its counter ends; and the option that mends or shows it."""

MALFORMED = "events_malformed_"
"""How counters of malformed rows begin."""

OUTSIDE = {
    "events_outside_run": "outside of --start to --end",
    "events_outside_domain": "with items outside of --domain or --rules",
}
UNUSED = {
    "events_of_other_values": "neither enter nor leave",
    "events_of_other_actions": "neither insert nor delete",
    "points_outside_universe": "outside of the universe",
    "events_filtered": "do not pass --where",
    "events_without_value": "without a value count as 0",
}
"""Other rows that are not used, or not as they are."""


class RecordsRead(NamedTuple):
    """What a run has done with the rows of its input, by its exact counters.

    Attributes:
        faults: of malformed rows, by keys of `FAULTS`.
        rest: what became of rows that are neither used nor malformed, in words, the most frequent first.
    """

    read: int
    used: int
    malformed: int
    late: int
    faults: Mapping[str, int]
    rest: Mapping[str, int]

    @classmethod
    def of(cls, counters: Mapping[str, int]) -> RecordsRead:
        """Take the counters of one question apart."""
        faults = {name.removeprefix(MALFORMED): n for name, n in counters.items() if name.startswith(MALFORMED) and n}
        read = counters.get("events_read", 0) + sum(faults.values())
        malformed, late = counters.get("events_malformed", 0), counters.get("events_late", 0)
        used = max(0, counters.get("events_usable", 0) - late)  # an event may be late for several windows
        others = {"events_late": "late", **OUTSIDE, **UNUSED}
        rest = {text: counters[name] for name, text in others.items() if counters.get(name)}
        return cls(read, used, malformed, late, faults, dict(sorted(rest.items(), key=lambda one: -one[1])))

    def in_words(self, dead_letter: str | None = None) -> str:
        """Say how many rows were used, and what became of the others."""
        kept = f"see {dead_letter}" if dead_letter else "--dead-letter FILE keeps them"
        parts = [f"{self.malformed:,} unusable: {kept}"] if self.malformed else []
        parts += [f"{count:,} {what}" for what, count in [*self.rest.items()][:SEVERAL]]
        rest = f" ({'; '.join(parts)})" if parts else ""
        return f"{self.used:,} of {self.read:,} rows used{rest}"

    def reasons(self, time_format: str | None = None) -> str:
        """Say why rows are not used, the most frequent reason first."""
        return listed({fault(code, time_format): number for code, number in self.faults.items()} | {**self.rest})


def fault(code: str, time_format: str | None = None, named: Mapping[str, str] = {}) -> str:
    """Say what is wrong with rows, and which option is about it, and how fields are `named` by theirs."""
    what, option = FAULTS.get(code, (f"refused as {code.replace('_', ' ')}", "--dead-letter"))
    if code == "time_syntax" and time_format is not None:
        what = f"with a time that is not of the form {time_format}"
    field = named.get(code.partition("_")[0], option)
    options = [option] * (option != field.partition(" ")[0]) + [field]
    return f"{what} ({', '.join(options)})"


def listed(found: Mapping[str, int]) -> str:
    """Write numbers of things, the largest first."""
    return ", ".join(f"{number:,} {what}" for what, number in sorted(found.items(), key=lambda one: -one[1]))


WARNING = "WARNING: "
"""How the one line begins that warns."""

LABEL, MUCH, MOST = 11, 0.05, 0.5
"""Columns of the labels of a summary; shares of what is dropped, and of rows outside of what was asked, to warn of."""

DRY = "dry run: nothing is published, recorded or spent; these numbers are exact, guard them like the input"
NO_COUNTERS = "the runner reports no counters: how many rows were used is not known"

QUOTES = {"records_of_many_lines": "records of CSV have very many lines: --quote none takes quotes as text"}

COUNTED = QUOTES | {
    "runs_stopped": "tests stop, since their budget is spent: raise --epsilon, or report less often",
    "estimates_without_bound": "estimates no longer follow the set: raise --max-updates",
    "queries_refused": "queries are refused, since the budget is spent: raise --epsilon",
}
"""Counters that are worth a warning where they are not 0, and what it says."""

SHARES = {
    "values_clipped": ("events_usable", "of values are beyond --max-value, --low or --high"),
    "sums_over_limit": ("sums_before_limit", "of the sum of all values is beyond --max-value"),
    "values_rounded": ("events_read", "of values are rounded to --value-unit"),
    "records_over_limit": ("records_before_limit", "of records are dropped, as one counts per person, the last one"),
}
"""Counters that are worth a warning where they are a large share of another one, and what it says."""

DROPPED = {
    f"{name}_over_limit": (f"{name}_before_limit", f"of {what} are dropped by {option}")
    for name, what, option in (
        ("values", "values", "--max-per-window"),
        ("items", "items", "--max-per-window"),
        ("contributions", "contributions", "--max-contributions"),
        ("entries", "entries", "--max-contributions"),
        ("charged", "contributions", "--max-hits"),
    )
}
"""The same of what limits drop, where no share of it is released."""

ACCURACY = {
    "stddev": "noise about {} {unit}",
    "sum_stddev": "of sums {}{of}",
    "error_bound": "all numbers at once within {} {unit} (95%)",
    "rank_error": "ranks within {} values (95%)",
    "start_margin": "alerts miss by at most {} {unit} (95%)",
    "selection_error": "no item is missing that leads by more than {} {unit} (95%)",
}
"""What numbers of a guarantee file on its accuracy mean."""

NEAREST = "at most {} {unit} between a query and its answer (95%)"


class QuestionFacts(NamedTuple):
    """A question of a run, as its summary is made of it."""

    name: str
    counters: Mapping[str, int]
    record: Mapping[str, Any]


class Budget(NamedTuple):
    """What a run costs, and what all runs on a data set cost together.

    Attributes:
        dataset: its name; empty where no ledger is kept.
        runs, spent: how many releases there are that protect the `unit` of this one, and their epsilon together.
        silent: how many others there are.
        delta: at which `spent` and `limit` are.
        twin: a run with another key or run id, and all else the same.
    """

    dataset: str = ""
    runs: int = 1
    spent: float = 0.0
    delta: float = 0.0
    limit: float | None = None
    repeats: bool = False
    dry: bool = False
    unit: PrivacyUnit = PERSON
    silent: int = 0
    twin: str = ""

    def in_words(self) -> str:
        """Say it; what this run costs is what it promises."""
        if not self.dataset:
            return "not recorded: --key FILE or --ledger FILE adds up what all runs cost"
        twin = f"what {self.twin} published, with another key or run id, costs again; " if self.twin else ""
        cost = "a repetition, free; " if self.repeats else twin
        dry = "with this one, " * (self.dry and not self.repeats)
        runs = f"{self.runs:,} runs" if self.runs > 1 else "the only run"
        runs = f"{self.runs:,} of {self.runs + self.silent:,} runs" if self.silent else runs
        unit = re.sub(r", counted from .* UTC", "", unit_in_words(self.unit))  # as the line on privacy says
        who = f", those that protect {unit}" if self.silent else "" if self.unit == PERSON else f", for {unit}"
        of = "" if self.limit is None else f" of {self.limit:g}"
        at = f" at delta {self.delta:.3g}" if self.delta else ""
        none = "" if of else ", no limit"
        return f"{cost}{dry}{runs} on {self.dataset!r}{who}: epsilon {self.spent:.3g}{of}{at}{none}"


class Summary(NamedTuple):
    """What a run prints besides its table: lines before it and after it, and why nothing could be used, if so."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    nothing: str | None


def summary(
    asked: Sequence[QuestionFacts],
    guarantee: Mapping[str, Any],
    *,
    budget: Budget | None = None,
    path: str | None = None,
    dead_letter: str | None = None,
    dry_run: bool = False,
    views: Sequence[str] = (),
) -> Summary:
    """Say what a run has used and published, what it promises, and how accurate that is.

    Args:
        budget: what it costs; None where nobody knows.
        path: of its rows; None if they are not kept.
    """
    known = [each for each in asked if each.counters]
    nothing = "; ".join(filter(None, (_of(each, _nothing(each, dry_run)) for each in known))) or None
    warning = next((_of(each, text) for each in asked for text in _warnings(each)), None) if nothing is None else None
    used = _together({each.name: RecordsRead.of(each.counters).in_words(dead_letter) for each in known}) or NO_COUNTERS
    before = [f"{WARNING}{warning}"] * bool(warning) + [DRY] * dry_run + [used]
    lines = {
        "privacy": privacy_in_words(guarantee, asked[0].record.get("parameters", {}).get("window")),
        "accuracy": _together({each.name: accuracy_in_words(each.record) for each in asked}, short=True),
        "limits": _together({each.name: limits_in_words(each.record) for each in asked}),
        "budget": "" if budget is None else budget.in_words(),
        "views": f"{', '.join(views)}: free" if views else "",
        "more": "" if path is None or dry_run else f"privstream explain {path}",
    }
    return Summary(tuple(before), tuple(f"{name:{LABEL}}{text}" for name, text in lines.items() if text), nothing)


def _of(asked: QuestionFacts, text: str) -> str:
    """Say which question a text is about."""
    return f"{asked.name}: {text}" if asked.name and text else text


def _together(texts: Mapping[str, str], *, short: bool = False) -> str:
    """Say once what is the same of all questions, and else what is true of the first ones, perhaps in short."""
    several, names = len({*texts.values()}) > 1, dict[str, list[str]]()
    for name, text in texts.items():
        names.setdefault(text.partition("; ")[0] if short and several else text, []).append(name)
    parts = [f"{', '.join(whose)}: {text}" if several else text for text, whose in names.items() if text]
    return "; ".join([*parts[:SEVERAL], *[f"{len(parts) - SEVERAL} more"] * (len(parts) > SEVERAL)])


def _nothing(asked: QuestionFacts, dry_run: bool) -> str:
    """Say why nothing that was read could be used; empty if something could."""
    records = RecordsRead.of(asked.counters)
    if not records.used:
        why = records.reasons(asked.record.get("parameters", {}).get("time_format")) or "the input has no rows"
        alone = "" if dry_run else ", and the result is noise alone"
        return f"no row could be used{alone}: {'; '.join([why, *_counted(asked, QUOTES)])}"
    return ""


def _warnings(asked: QuestionFacts) -> Iterable[str]:
    """Yield warnings, the most important one first."""
    counters, records = asked.counters, RecordsRead.of(asked.counters)
    parameters = asked.record.get("parameters", {})
    if bounds := lower_bounds(asked.record):
        how = "raise --max-contributions (privstream suggest compares values)"
        yield f"{bounds} of contributions, so numbers are lower bounds: {how}"
    lost = min(records.read, records.malformed + records.late)
    if records.read and lost >= MUCH * records.read:
        code = max(records.faults, key=lambda one: records.faults[one], default="")
        why = fault(code, parameters.get("time_format")) if records.malformed >= records.late and code else None
        yield (
            f"{percent(lost / records.read)} of rows are not used, most of them "
            f"{why or 'later than --allowed-lateness'}"
        )
    for name, text in OUTSIDE.items():
        share = counters.get(name, 0) / max(records.read, 1)
        if share >= MOST and not (name == "events_outside_domain" and "rules" in parameters):
            read = f"; lists are read in {encoding}" if (encoding := parameters.get("encoding")) else ""
            yield f"{percent(share)} of rows are {text}: is that intended{read}?"
    for name, (of, text) in (SHARES if "limits" in asked.record else DROPPED | SHARES).items():
        share = counters.get(name, 0) / max(counters.get(of, 0), 1)
        if share >= MUCH:
            plan = "; privstream plan compares limits" * (name in DROPPED)
            yield f"{percent(min(1.0, share))} {text} (exact: keep it secret, choose no option by it{plan})"
    yield from _counted(asked, COUNTED)


def _counted(asked: QuestionFacts, texts: Mapping[str, str]) -> Iterable[str]:
    """Yield what is worth a warning of counters."""
    return (f"{asked.counters[name]:,} {text}" for name, text in texts.items() if asked.counters.get(name))


def privacy_in_words(guarantee: Mapping[str, Any], window: Any = None) -> str:
    """Say what a guarantee file promises, and of whom."""
    unit = guarantee.get("privacy_unit", {"what": ""})
    delta = f", delta {guarantee['delta']:g}" if guarantee["delta"] else ""
    whose = str(guarantee["unit"])
    if unit["what"] == "person":
        steps = guarantee.get("horizon")
        run = "the run" if steps is None or window is None else f"the {windows_in_words(steps, window)}"
        run = run.replace("the 1 ", "one ", 1)
        period = whose.partition(", counted from")[0].replace("one person in one window of", "one budget period of", 1)
        whose = f"all that one person does in {period if unit.get('window') is not None else run}"
    return f"epsilon {guarantee['epsilon']:g}{delta}, for {whose}"


def unit_in_words(unit: PrivacyUnit) -> str:
    """Say for whom a budget is."""
    text = str(unit).removesuffix(" over the whole run")
    return text if unit.window is None else f"{text.replace('window', 'budget period')} (n periods cost n times that)"


def accuracy_in_words(record: Mapping[str, Any]) -> str:
    """Say how accurate the rows of a guarantee file are."""
    numbers, unit, parts = record["accuracy"], unit_of(record), list[str]()
    of = f" ({what})" if (what := value_unit(record)) else ""
    for name, text in ACCURACY.items():
        if (bound := numbers.get(name)) is not None and math.isfinite(bound):
            bound = math.ceil(bound) if name == "error_bound" else bound
            nearest = name == "error_bound" and word_of(record) == "predecessor"
            parts.append((NEAREST if nearest else text).format(number(bound), unit=unit, of=of))
    found = numbers.get("likely_in_1", numbers.get("detection_threshold") if "tests" in numbers else None)
    if found is not None:
        window = record.get("parameters", {}).get("window")
        one = windows_in_words(1, window).replace("1 ", "one ", 1)
        last = max((int(name.rpartition("_")[2]) for name in numbers if name.startswith("likely_in_")), default=1)
        each = numbers.get(f"likely_in_{last}", found)
        more = f", or {each:,} every {window_in_words(window)}" if each != found else ""
        parts.append(f"items are found (95%) from {found:,} {unit} in {one}{more}")
    if parts:
        return "; ".join(parts)
    claim = re.sub(r" \([^()]*\)$", "", str(numbers["sentence"]).split(". ")[0].rstrip("."))
    return f"{claim[:1].lower()}{claim[1:]}"


def limits_in_words(record: Mapping[str, Any]) -> str:
    """Say the limits per person, and which share of contributions they drop; empty without limits."""
    found = record.get("limits")
    if found is None:
        limits = [str(Limit(**one)) for one in record["accuracy"].get("limits") or ()]
        return f"per person {', '.join(limits)}" if limits else ""
    run, window, dropped = found["max_contributions"], found["max_per_window"], found["dropped"]
    parts = [] if run is None else [f"{run:,} contribution{'s' * (run != 1)} per person"]
    parts += [] if window is None else [f"{window:,} per {'person and ' * (run is None)}window"]
    told = "an unknown share" if dropped is None else dropped_in_words(dropped).removeprefix("about ")
    return f"{', '.join([*parts, told])} dropped"


def lower_bounds(record: Mapping[str, Any]) -> str:
    """Say what limits drop, if numbers are published as lower bounds; else nothing."""
    dropped = (record.get("limits") or {}).get("dropped")
    return "" if dropped is None or regime_of(dropped) != BOUND else f"limits drop {dropped_in_words(dropped)}"


def regime_of(dropped: Mapping[str, float | None]) -> str:
    """Return how numbers allow for the share that limits drop, as it was released."""
    return regime(dropped["share"] or 0.0, dropped["lower"] or 0.0, dropped["upper"])


def dropped_in_words(dropped: Mapping[str, float | None]) -> str:
    """Write the share that limits drop, as it was released."""
    share, lower, upper = (dropped[name] for name in ("share", "lower", "upper"))
    least = percent(lower or 0.0, math.floor)
    if upper is None:
        return f"at least {least}"
    most = percent(upper, math.ceil)
    return f"about {percent(share)} ({least} to {most})" if share else f"at most {most}" if upper else "nothing"


def percent(share: float, towards: Callable[[float], int] = round) -> str:
    """Write a share, rounded to whole percents or to one digit; the ends of an interval are rounded away from it."""
    digits = max(0, -math.floor(math.log10(100 * share))) if share else 0
    return f"{towards(round(100 * share * 10**digits, 6)) / 10**digits:.{digits}f}%"


def capital(text: str) -> str:
    """Return a text as it begins a sentence."""
    return text[:1].upper() + text[1:]


def number(value: float) -> str:
    """Write a number with the digits that are of use: three of a small one."""
    if abs(value) < 0.005:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.2g}"


CALENDAR = re.compile(r"(\d+) ?([a-z]+?)s?(?: |$)")
"""How a length by the calendar is written."""


def window_in_words(window: Any) -> str:
    """Return the length of a window without a leading 1, from seconds or words of a calendar, if it is known.

    >>> window_in_words(604_800.0), window_in_words("1week Europe/Berlin"), window_in_words("3 months")
    ('week', 'week', '3 months')
    """
    if window is None:
        return "window"
    if isinstance(window, str):
        number, unit = CALENDAR.match(window).groups()  # type: ignore[union-attr]
        text = f"{number} {unit}{'s' * (number != '1')}"
    else:
        text = in_words(round(window * 1_000_000))
    return {"7 days": "1 week"}.get(text, text).removeprefix("1 ")


def word_of(record: Mapping[str, Any]) -> str:
    """Return the question of a guarantee file."""
    return str(record.get("made_by", {}).get("command", "")).removeprefix("privstream ")


def unit_of(record: Mapping[str, Any]) -> str:
    """Return what the numbers of a guarantee file count."""
    word = word_of(record)
    if word == "counts" and record["guarantee"].get("privacy_unit", {}).get("what") == "event":
        return "events"
    if word == "counts" and record.get("parameters", {}).get("over", "window") not in ("window", "start"):
        return "contributions"
    info = QUESTIONS.get(word)
    return "people" if info is None else info.error_unit


def value_unit(record: Mapping[str, Any]) -> str:
    """Return in what values are added up, such as "0.01 Betrag"; empty where that has no name."""
    given = record.get("parameters", {})
    name, unit = given.get("value", ""), given.get("value_unit", 1.0)
    return f"{unit:g} {name}" if unit != 1 else "" if name == "value" else str(name)


VIEWS = {"ratio": "ratios", "above": "alerts", "below": "alerts"}
"""What rows of views are, by a key that such views have, where they are not those of their question."""


def title_of(record: Mapping[str, Any], keys: Sequence[str] = ("item",), unit: str = "") -> str:
    """Return what the rows of a guarantee file are, which have these columns for items, and numbers in a `unit`."""
    word, given = word_of(record), record.get("parameters", {})
    window, over = given.get("window"), given.get("over", "window")
    length = "" if window is None else window_in_words(window)
    by = f" by {length}" if length else ""
    if (view := next((title for key, title in VIEWS.items() if key in given), "")) or word != "counts":
        return f"{view or QUESTIONS[word].title}{by}"
    rise = "rise in " * bool(given.get("rising") or "against" in given)
    about = f"{rise}{unit or unit_of(record)} per {(', ' if over == 'window' and length else ' and ').join(keys)}"
    if over == "window":
        return f"{about}{f' and {length}' if length else ''}"
    return f"{about} {'since the start' if over == 'start' else f'in {window_in_words(over)}'}{',' * bool(by)}{by}"


def view_parameters(views: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the keys of a view, as guarantee files describe them, and those of the views that it is made of."""
    given: dict[str, Any] = views[name]["view"]
    return (view_parameters(views, given["of"]) if given.get("of") in views else {}) | given


def windows_in_words(count: int, window: Any) -> str:
    """Return a number of windows in words.

    >>> windows_in_words(13, 604_800.0), windows_in_words(8, 21_600), windows_in_words(1, "1 month")
    ('13 weeks', '8 windows of 6 hours', '1 month')
    """
    length = window_in_words(window)
    plural = "s" * (count != 1)
    return f"{count:,} window{plural} of {length}" if " " in length else f"{count:,} {length}{plural}"
