"""One description of each question: options, YAML and Python refuse what it excludes, each in its own words."""

import itertools
import math
import os
from typing import Any, get_args

import jsonschema
import pytest
from privstream.pipelines import Counts, Monitor, Windows, cli
from privstream.pipelines.command import Parser, UsageError
from privstream.pipelines.commands.question import schema
from privstream.pipelines.model.base import WrongKeyError
from privstream.pipelines.model.catalogue import MODELS
from privstream.pipelines.model.given import Given, merge, nested
from privstream.pipelines.model.monitor import SECTIONS, ViewModel
from privstream.pipelines.options import LAYERS, add_options, choices_of, given_to, in_python, options_of
from privstream.pipelines.yaml_file import Document, at, read_document
from questions import overridden

NEEDED: dict[str, str] = {
    "alerts": "--rules rules",
    "histogram": "--domain items",
    "quantiles": "--low 0 --high 1",
    "flags": "--domain items --thresholds 5",
    "ranges": "--universe 64 --queries ranges",
    "predecessor": "--universe 64 --queries points",
    "queries": "--records 9 --queries linear --domain items",
}
"""What some questions need, besides an input and an epsilon."""

USUAL = "--input events.csv --epsilon 1"
BAD = {"integer": ("x", "2.5", "0", "-1", str(2**70)), "number": ("x", "nan", "inf"), "duration": ("7x", "")}


def parsed(word: str, *words: str) -> Monitor:
    kind = MODELS[word]
    parser, options = Parser(prog=word), tuple(options_of(kind))
    add_options(parser, options, kind)
    for option, how in LAYERS.items():
        parser.add_argument(option, **how)
    line = overridden([*USUAL.split(), *NEEDED.get(word, "").split(), *words])
    return given_to(kind, vars(parser.parse_args(line)), options).monitor()


def wrong_values(field: Any) -> tuple[str, ...]:
    """Return texts that a field excludes, by its type."""
    if "_thresholds" in str(field.metadata):  # any text may be a path
        return ()
    kinds = {str(part) for part in (field.annotation, *get_args(field.annotation), *field.metadata)}
    text = " ".join(kinds)
    if choices_of(field):
        return ("none of these",)
    if "int" in kinds or "<class 'int'>" in text:
        return BAD["integer"] if "Ge(ge=1)" in text else BAD["integer"][:2]
    if "_of_time" in text:
        return BAD["duration"]
    return BAD["number"] if "<class 'float'>" in text and "str" not in text else ()


@pytest.mark.parametrize("word", MODELS)
def test_options_refuse_what_models_exclude_and_name_themselves(word: str, tmp_path, monkeypatch) -> None:
    """Drawn from the models: with the option as it is typed, and no value of another one."""
    monkeypatch.chdir(tmp_path)
    assert parsed(word).questions
    refused = 0
    for option in options_of(MODELS[word]):
        for value in wrong_values(option.field):
            if "may be given several times" in (option.field.description or ""):
                continue
            with pytest.raises((UsageError, SystemExit)) as raised:
                parsed(word, f"{option.word}={value}")
            assert str(raised.value).startswith(f"{option.word} must"), (option.word, value)
            refused += 1
    assert refused > 8


NEEDED_KEYS: dict[str, dict[str, Any]] = {
    "alerts": {"rules": [{"name": "a", "at_least": 3}]},
    "histogram": {"domain": ["a"]},
    "quantiles": {"low": 0, "high": 1},
    "flags": {"domain": ["a"], "thresholds": 5},
    "ranges": {"universe": 64, "queries": [{"low": 1, "high": 9}]},
    "predecessor": {"universe": 64, "queries": "q"},
    "queries": {"records": 9, "queries": "q", "domain": ["a"]},
}
VALUES: list[Any] = [None, True, False, "", "x", "1", "1h", "a,,b", "2026-01-01"]
VALUES += [-1, 0, 1.5, 2**70, 10**400, math.nan, math.inf]
VALUES += [[], [1], [""], [None], [[1]], {}, {"a": 1}, {"a": "b"}]


@pytest.mark.parametrize("word", MODELS)
def test_keys_of_a_file_refuse_what_the_schema_excludes_and_name_themselves(word: str) -> None:
    """Whatever the value: with its line, its key and the rule, and no error of another kind."""
    valid = jsonschema.Draft202012Validator(schema())
    usual: dict[str, Any] = {"data": {"input": "x"}, "privacy": {"epsilon": 1}, "output": {"path": "out"}}
    usual |= {"questions": {"it": {"question": word, **NEEDED_KEYS.get(word, {})}}}
    places: list[tuple[str, ...]] = [("questions", "it", key) for key in MODELS[word].model_fields if key != "question"]
    if word == "counts":
        places += [(section, key) for section, model in SECTIONS.items() for key in model.model_fields]
        places += [("views", "v", field.alias or key) for key, field in ViewModel.model_fields.items()]
        places += [(key,) for key in Monitor.model_fields]
        usual["views"] = {"v": {"of": "it", "largest": 3}}
    for place, value in itertools.product(places, VALUES):
        content = merge(usual, nested(place, None))
        at(content, place[:-1])[place[-1]] = value
        document = Document("m.yaml", content, {place: 7})
        try:
            Given([document], document).monitor()
        except UsageError as error:
            said = str(error)
            assert said.startswith("m.yaml, line") and place[-1] in said, (place, value, said)
            assert "must" in said or "unknown key" in said, (place, value, said)
        else:
            assert valid.is_valid(content), (place, value)


def test_unknown_names_get_a_suggestion_everywhere(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["counts", *USUAL.split(), "--max-contributons", "4"]) == 2
    assert "unknown option --max-contributons; did you mean `--max-contributions`?" in capsys.readouterr().err
    assert cli.main(["quantiles", "--inptu", "a.csv"]) == 2
    assert "unknown option --inptu; did you mean `--input`?" in capsys.readouterr().err, "and not that it is missing"
    for words, meant in (["topk"], "top-k"), (["budget", "shw", "--ledger", "key.ledger.jsonl"], "show"):
        with pytest.raises(SystemExit):
            cli.main(words)
        assert f"did you mean `{meant}`?" in capsys.readouterr().err
    assert cli.main(["counts"]) == 2
    assert "--input must be given" in capsys.readouterr().err
    with pytest.raises(TypeError, match="no option `max_contributons`; did you mean `max_contributions`"):
        in_python(Counts, {"max_contributons": 4}, {})
    with pytest.raises(UsageError, match=r"--set data\.usr: unknown key; did you mean `user`"):
        parsed("counts", "--set", "data.usr=who")
    with pytest.raises(WrongKeyError, match="quantile: unknown key; did you mean `quantiles`"):
        MODELS["quantiles"].read({"low": 0, "high": 1, "quantile": [0.5]})


def test_every_key_is_reached_by_set_and_defaults_stand_below(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = parsed("counts", "--set", "data.time_zone=Europe/Berlin", "--set", "top=3", "--set", "windows.window=1h")
    assert (found.data.time_zone, found.questions["counts"].top, found.windows.window) == ("Europe/Berlin", 3, 3600)
    for wrong in ("questions.other.top=3", "views.largest.largest=3"):
        with pytest.raises(UsageError, match="set must be about counts alone"):
            parsed("counts", "--set", wrong)
    (tmp_path / "privstream.yaml").write_text("data: {user: who, time_zone: UTC}\naccount: {key: k, dataset: shop}\n")
    found = parsed("counts", "--time-zone", "Europe/Berlin")
    assert (found.data.user, found.data.time_zone, found.account.dataset) == ("who", "Europe/Berlin", "shop")
    (tmp_path / "other.yaml").write_text("data: {usr: who}\n")
    with pytest.raises(UsageError, match=r"other.yaml, line 1: data.usr: unknown key; did you mean `user`"):
        parsed("counts", "--defaults", "other.yaml")
    (tmp_path / "other.yaml").write_text("questions: {}\n")
    with pytest.raises(UsageError, match=r"other.yaml, line 1: questions: must be one of windows"):
        parsed("counts", "--defaults", "other.yaml")


@pytest.mark.parametrize("word", MODELS)
def test_help_is_short_and_help_all_has_everything(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {}
    for line in (["--help"], ["--help", "all"]):
        with pytest.raises(SystemExit):
            cli.main([word, *line])
        pages[len(line)] = capsys.readouterr().out
    shown = [line for line in pages[1].splitlines() if line.startswith("  --")]
    assert len(shown) <= 24 and len(pages[1].split()) <= 600
    assert ("rows together show about one person" in " ".join(pages[1].split())) == (
        "person" in MODELS[word].info.protected
    )
    for option in options_of(MODELS[word]):
        assert f"{option.word} " in pages[2] or f"{option.word}\n" in pages[2]


def test_words_are_the_same_in_python_in_files_and_on_the_command_line(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = "--user who --max_contributions 40 --window 1day --start 2026-01-01 --end 2026-01-05 --delta 1e-6 --key k"
    typed = parsed("counts", *line.split())
    rest: dict[str, Any] = {
        "data": {"input": "events.csv", "user": "who"},
        "windows": Windows("1day", start="2026-01-01", end="2026-01-05"),
        "privacy": {"epsilon": 1, "delta": 1e-6},
        "account": {"key": "k"},
    }
    assert Monitor.of(Counts(max_contributions=40), **rest) == typed
    given = {"input": "events.csv", "user": "who", "window": "1day", "start": "2026-01-01", "end": "2026-01-05"}
    given |= {"epsilon": 1, "delta": 1e-6, "key": "k", "max_contributions": 40}
    assert in_python(Counts, given, {}).monitor() == typed


def test_passwords_are_refused_and_not_quoted(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for option in ("--input", "--ledger", "--send"):
        with pytest.raises(UsageError, match=f"{option} must be without a password") as raised:
            parsed("counts", f"{option}=postgresql://me:secret@host/data")
        assert "secret" not in str(raised.value)
    with pytest.raises(UsageError, match="must be valid UTF-8 text"):
        parsed("counts", f"--user={os.fsdecode(b'a' + bytes([255]))}")


def test_the_schema_has_each_key_with_its_description() -> None:
    found = schema()["$defs"]
    for kind in MODELS.values():
        for name in kind.options():
            assert found[kind.__name__]["properties"][name]["description"]
    assert set(found["Data"]["properties"]) == set(SECTIONS["data"].model_fields)


EVERYTHING = """\
data: {input: clicks.csv, user: customer, time: ts, where: ms > 3, null: [NA], trim: true, watch: 10}
windows: {window: 3600, start: 2026-01-01, end: 2026-02-01, renew_every: 30d}
privacy: {epsilon: 1, delta: 1.0e-6}
questions:
  pages:   {question: counts, item: [country, page], share: 3, rising: 1, max_contributions: 200}
  latency: {question: quantiles, value: ms, low: 1, high: 60000, quantiles: [0.5, 0.99]}
  present: {question: cardinality, timeout: 30m}
views:
  weekly:  {of: pages, over: 7d, largest: 5}
  risers:  {of: pages, against: 1d}
  outage:  {of: pages, item: [de, /error], above: 300, clear_below: 200, for: 3}
  slow:    {of: latency, quantile: 0.99, above: 500}
  rate:    {ratio: [weekly, latency]}
account: {key: key}
output: {path: out, format: csv}
"""


def test_what_is_read_is_valid(tmp_path) -> None:
    (tmp_path / "monitor.yaml").write_text(EVERYTHING)
    Monitor.from_file(tmp_path / "monitor.yaml")
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    jsonschema.Draft202012Validator(made).validate(read_document(str(tmp_path / "monitor.yaml")).content)
