"""What somebody has given, in layers: a file of defaults, a monitor, options, `--set`. Errors are in their words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml
from privstream.pipelines.command import CommandError, UsageError
from privstream.pipelines.model.base import Place, WrongKeyError
from privstream.pipelines.model.monitor import SECTIONS, Monitor
from privstream.pipelines.model.question import Question
from privstream.pipelines.terminal import did_you_mean
from privstream.pipelines.yaml_file import CoreLoader, Document, at

PASSWORD = re.compile(r"\s*[\w+.-]+:/+([^/@]*:[^@]*@|.*[?&;]\w*password=)", re.IGNORECASE)
"""How an address begins that has a password, of whatever scheme: also one that no option takes."""

RIVALS = frozenset({"people", "delta"})
"""Keys of privacy that follow from each other: the last one that is given counts."""

SECRETS = "for PostgreSQL set PGPASSWORD, or write ~/.pgpass; for Kafka give kafka_setting sasl.password=@FILE"


@dataclass(frozen=True)
class Named:
    """Options, keywords or assignments by their names."""

    content: Mapping[str, Any]
    names: Mapping[Place, str]
    kind: Callable[[str], Exception] = UsageError

    def error(self, place: Place, rule: str) -> Exception:
        """Return an error about a value, which is called as it is here."""
        by_key = {each[-1]: name for each, name in self.names.items()}
        name = self.names.get(place) or by_key.get(place[-1], place[-1]) if place else ""
        return self.kind(f"{name} {rule}".strip())


Layer = Named | Document


@dataclass(frozen=True)
class Given:
    """Layers, of which later ones stand above earlier ones; the words of the `main` one are for what is missing."""

    layers: Sequence[Layer]
    main: Layer
    single: type[Question] | None = None

    @cached_property
    def content(self) -> dict[str, Any]:
        """All layers as one mapping, if none has a text that is refused."""
        merged: dict[str, Any] = {}
        for layer in self.layers:
            for place, text in texts_of(layer.content):
                if "\0" in text or text.encode(errors="ignore").decode() != text:  # UTF-8 has no surrogates
                    raise layer.error(place, "must be valid UTF-8 text without a NUL character")
                if PASSWORD.match(text):
                    raise layer.error(place, f"must be without a password, which others could read; {SECRETS}")
            above, below = layer.content.get("privacy"), merged.get("privacy")
            if isinstance(above, Mapping) and isinstance(below, Mapping) and len(above.keys() & RIVALS) == 1:
                merged["privacy"] = {key: below[key] for key in below if key in above or key not in RIVALS}
            merged = merge(merged, layer.content)
        return merged

    def monitor(self) -> Monitor:
        """Return the monitor; errors are those of the layer with what is wrong."""
        with self.errors():
            if self.single is None:
                return Monitor.read({"data": {}, "privacy": {}, **self.content}).check()
            info, rest = self.single.info, {"data": {}, "privacy": {}, **self.content}
            own, *others = rest.pop("questions").values()
            if others or rest.keys() - SECTIONS:
                raise ValueError(f"set must be about {info.word} alone: a file has several questions, or views")
            question = self.single.read({"question": info.word, **own}, at=("questions", info.name))
            return Monitor.of(question, **rest)

    @contextmanager
    def errors(self, *, running: bool = False) -> Iterator[None]:
        """Let errors be said in the words of those who gave what is wrong; once it is `running`, not the system's."""
        try:
            yield
        except WrongKeyError as error:
            raise self._in_words(error.place, error.rule) from error
        except CommandError:
            raise
        except (ValueError, TypeError, OSError, OverflowError) as error:
            if running and isinstance(error, OSError):
                raise
            raise self._about(error) from error

    def _in_words(self, place: Place, rule: str) -> Exception:
        place = self._whole(place)
        holder = next((layer for layer in reversed(self.layers) if at(layer.content, place) is not None), self.main)
        return holder.error(place, rule)

    def _about(self, error: Exception) -> Exception:
        """Return an error of what lies below: it may begin with the name of a question, and that of an argument."""
        name, colon, message = str(error).partition(": ")
        if colon and name in self.content.get("questions", {}) and self.single is None:
            key, _, rule = message.removeprefix("--").partition(" ")
            place = self._whole((key.rstrip(",").replace("-", "_"),), name)
            return self._in_words(place, message if place == ("questions", name) else rule)
        made = self.main.error((), str(error))
        return TypeError(str(made)) if isinstance(error, TypeError) and not isinstance(made, CommandError) else made

    def _whole(self, place: Place, name: str = "") -> Place:
        """Return the place of an option whose last key alone is known."""
        if len(place) != 1 or place[0] in Monitor.model_fields:
            return place
        questions = self.content.get("questions", {})
        names = [name] if name else list(questions)
        asked = [each for each in names if place[0] in questions.get(each, {})] or (names if self.single else [])
        if asked and (self.single is None or place[0] in self.single.model_fields):
            return ("questions", asked[0], *place)
        found = [section for section, model in SECTIONS.items() if place[0] in model.model_fields]
        return (found[0], *place) if found else ("questions", name) if name else place


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return mappings as one, in which what stands above counts."""
    found = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merge(found[key], value) if both else value
    return found


def nested(place: Place, value: Any) -> dict[str, Any]:
    """Return a mapping with one value at a place."""
    return {place[0]: nested(place[1:], value) if len(place) > 1 else value}


def texts_of(content: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Yield all texts, with their places."""
    if isinstance(content, str):
        yield place, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from texts_of(value, (*place, str(key)))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from texts_of(value, place)


def assignments(texts: Sequence[str], names: Mapping[str, Place]) -> Named:
    """Return what `--set PATH=VALUE` gives; a path may be the name of an option."""
    content: dict[str, Any] = {}
    places: dict[Place, str] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise UsageError(f"--set must be PATH=VALUE, such as data.time_zone=Europe/Berlin, got {text}")
        place = names.get(path.replace("-", "_")) or tuple(path.split("."))
        if place[0] not in Monitor.model_fields:
            raise UsageError(f"--set {path}: unknown key{did_you_mean(path, [*names, *Monitor.model_fields])}")
        try:
            read = yaml.load(value, CoreLoader)
        except yaml.YAMLError:
            raise UsageError(f"--set {path} must have a value that YAML reads, got {value}") from None
        content, places[place] = merge(content, nested(place, read)), f"--set {path}:"
    return Named(content, places)
