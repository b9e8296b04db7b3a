"""What `--help` looks like, and what a mistake on the command line says."""

import re
from collections.abc import Iterator, Mapping

import pytest
from privstream.pipelines import cli
from privstream.pipelines.command import HelpPage, Parser
from privstream.pipelines.questions.catalogue import WORDS, question


def pages(commands: cli.Commands = cli.COMMANDS) -> Iterator[list[str]]:
    """Return the words of everything that has a help page."""
    for word, (what, _) in commands.items():
        yield [word]
        if isinstance(what, Mapping):
            yield from ([word, *words] for words in pages(what))


PAGES = [[], *pages()]


def commands_of(commands: cli.Commands = cli.COMMANDS) -> Iterator[tuple[str, object]]:
    """Return the words of every command, and what makes it."""
    for word, (what, _) in commands.items():
        if isinstance(what, Mapping):
            yield from ((f"{word} {words}", one) for words, one in commands_of(what))
        else:
            yield word, what


def page(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        cli.main([*words, "--help"])
    return capsys.readouterr().out


WIDE = ([], ["heavy-hitters"])
"""Pages that are also shown on a wide terminal."""
SIZES = [(words, columns) for words in PAGES for columns in (80, 300) if columns == 80 or words in WIDE]


@pytest.mark.parametrize(
    ("words", "columns"), SIZES, ids=lambda value: " ".join(value) if value in PAGES else str(value)
)
def test_help_fits(
    words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = page(words, capsys)
    examples = [line for line in shown.splitlines() if line.startswith("  {")]
    assert max(len(line) for line in shown.splitlines() if line not in examples) <= min(columns, 100)
    what = dict(commands_of()).get(" ".join(words))
    assert what is None or cli.load(what).description.split()[0] in shown


def test_every_option_is_explained() -> None:
    for words, what in commands_of():
        parser = Parser(prog=words)
        cli.load(what).add_arguments(parser)
        assert [action.dest for action in parser._actions if not action.help] == [], words


FREE = (
    *(["demo"], ["budget"], ["plan", "cardinality"], ["plan", "counts"], ["plan", "quantiles"]),
    *(["audit", word] for word in cli.AUDITS),
)
"""Commands of which no one option must be given; budget and plan need one of two."""


@pytest.mark.parametrize("words", [words for words in PAGES if len(words) == 1 and words not in FREE], ids=" ".join)
def test_usage_names_what_must_be_given(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    usage = page(words, capsys).split("\n\n")[0]
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    needed = re.findall(r"--\w+", capsys.readouterr().err.split(";")[0])
    assert [option for option in re.findall(r"--\w+", usage) if option != "--help"] == needed


ONE_OF_EACH = (["heavy-hitters"], ["plan"], ["plan", "counts"], ["report"], ["budget"])
"""Commands on which all kinds of mistakes are tried; those of the others are read in the same way."""
MISTAKES = [
    (words, mistake)
    for words in PAGES[1:]
    for mistake in ([], ["--no-such"], ["no\nsuch"], ["--epsilon", "\n\n"], ["--input"])
    if mistake == ["--no-such"] or (words in ONE_OF_EACH and (mistake or words not in FREE))
]


@pytest.mark.parametrize(("words", "mistake"), MISTAKES, ids=lambda words: ascii(" ".join(words)))
def test_a_mistake_is_told_in_one_line(
    words: list[str], mistake: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main([*words, *mistake])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"privstream( [\w-]+)*: error: .*\n", shown.err)
    assert shown.err.endswith(f"; see privstream {' '.join(words)} --help\n")


@pytest.mark.parametrize("word", [word for word in WORDS if question(word).watched == "input"])
def test_help_says_when_streams_must_be_named(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(page([word], capsys).split())
    assert ("must be given if events have a stream" in shown) != question(word).all_streams


def test_paragraphs_are_wrapped_and_lists_keep_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = (
        "numbers:\n"
        f"  margin    {'people ' * 12}\n"
        "            and more\n"
        f'  {{"name": "{"x" * 90}"}}\n'
        f"{'Words ' * 10}\n"
        f"{'go on ' * 10}\n"
    )
    lines = HelpPage("privstream")._fill_text(text, 70, "").splitlines()
    assert lines[0] == "numbers:"
    assert lines[1].startswith("  margin    people") and lines[2].startswith(" " * 12 + "people")
    example = lines.index(f'  {{"name": "{"x" * 90}"}}')
    assert lines[example - 1].endswith("and more")
    assert max(map(len, lines[:example] + lines[example + 1 :])) <= 70
    assert " ".join(lines[example + 1 :]).split() == ["Words"] * 10 + ["go", "on"] * 10


def test_options_have_full_names_only(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="tool")
    parser.add_argument("--epsilon", type=float)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--eps", "1"])
    assert capsys.readouterr().err == "tool: error: unrecognized arguments: --eps 1; see tool --help\n"
