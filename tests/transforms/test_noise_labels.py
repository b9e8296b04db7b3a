"""What a ledger notes of noise: other labels are another release, and other code with the same labels is none."""

from importlib.resources.abc import Traversable
from pathlib import Path

import pytest
from examples import EXAMPLES, example
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts as Mechanism
from privstream.pipelines.accounts import noise_labels
from privstream.pipelines.accounts.build import modules
from privstream.pipelines.accounts.noise_labels import drawn_from, labels_in
from privstream.pipelines.questions.catalogue import QUESTIONS

COUNTS = "privstream.transforms.counts.transform"
LABELLED = {
    "privstream.transforms.counts.keyed_counts": ('"counts per key"', '"counts per key 2"'),
    "privstream.mechanisms.keyed_counts.keyed_counts": ('noise_label = "keyed counts"', 'noise_label = "counts 2"'),
    "privstream.mechanisms.noise.discrete": ('"proposal"', '"proposal 2"'),
}


def changed(monkeypatch: pytest.MonkeyPatch, folder: Path, module: str, old: str, new: str) -> tuple[str, ...]:
    """Return the labels of counts where a module has another text."""
    text = modules()[module].read_text("utf-8")
    assert old in text
    path = folder / "changed.py"
    path.write_text(text.replace(old, new))
    files: dict[str, Traversable] = modules() | {module: path}
    noise_labels._read.cache_clear()
    monkeypatch.setattr(noise_labels, "modules", lambda: files)
    found = labels_in(COUNTS)
    noise_labels._read.cache_clear()
    monkeypatch.undo()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("module", LABELLED)
def test_another_label_anywhere_on_the_way_of_noise_is_seen(module, monkeypatch, tmp_path):
    assert changed(monkeypatch, tmp_path, module, *LABELLED[module]) != labels_in(COUNTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("privstream.transforms.counts.transform", "common", "shared"),
        ("privstream.mechanisms.noise.discrete", '"""Integer laws', '"""Laws of integers'),
        ("privstream.transforms.top_k.parameters", '"top-k windows"', '"top-k windows 2"'),
    ],
)
def test_code_without_labels_and_labels_of_other_questions_change_nothing(module, old, new, monkeypatch, tmp_path):
    assert changed(monkeypatch, tmp_path, module, old, new) == labels_in(COUNTS)


def digest(name, **changes):
    return drawn_from({"": lambda noise: example(name, **changes | {"noise": noise})})


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_transform_has_one_that_depends_on_its_budget_and_not_on_when_it_is_made(name):
    epsilon = EXAMPLES[name][1]["epsilon"]
    assert digest(name) == digest(name) != digest(name, epsilon=1.01 * epsilon)


def test_methods_have_their_own():
    """What a run is recorded with is "auto", of which later code may make another method."""
    names = [name for name in EXAMPLES if name.startswith("alerts by")]
    assert len({digest(name) for name in ("alerts", *names)}) == 1 + len(names) > 2


def test_it_depends_on_how_a_mechanism_describes_itself(monkeypatch):
    before = digest("counts of a list")
    monkeypatch.setattr(Mechanism, "_described", lambda self: ["as it was", self.epsilon])
    assert digest("counts of a list") != before


def test_it_is_the_same_however_much_has_been_worked_out():
    def made(noise):
        transform = example("counts", noise=noise)
        _ = transform.guarantee, transform.accuracy, transform.mechanism.law, transform.counting_noise
        return transform

    assert drawn_from({"": made}) == digest("counts")


def test_each_question_of_several_counts():
    def make(noise):
        return example("counts", noise=noise)

    assert len({drawn_from({"a": make}), drawn_from({"b": make}), drawn_from({"a": make, "b": make})}) == 3


@pytest.mark.parametrize("word", QUESTIONS)
def test_every_question_has_labels(word):
    labels = labels_in(QUESTIONS[word].transform_class.__module__)
    assert len(labels) > 10 and any("user hash" in label or "item hash" in label for label in labels)
