"""Views of a monitor, as its file describes them: what is made of the published rows of its questions, at no cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from privstream.pipelines.model.base import Model, WrongKeyError, option
from privstream.pipelines.model.types import Count, Length, Name, Number, OneOrMore
from pydantic import BeforeValidator, Field, model_validator

if TYPE_CHECKING:
    from privstream.mechanisms.views.rules import Condition

KINDS: dict[str, tuple[str, ...]] = {
    "ratio": ("ratio", "largest"),
    "over": ("of", "over", "largest"),
    "against": ("of", "against", "largest"),
    "above": ("of", "item", "quantile", "above", "clear_below", "for"),
    "below": ("of", "item", "quantile", "below", "clear_above", "for"),
    "largest": ("of", "largest"),
}
"""What a view has that makes it one of a kind, and all keys of these: the first that it has decides."""


class ViewModel(Model):
    """What is made of published rows: one of ratio, over, against, above, below and largest decides what it is."""

    of: Name | None = option(None, "name of a question or of another view")
    ratio: (
        Annotated[tuple[str, str], BeforeValidator(lambda one: tuple(one) if isinstance(one, list) else one)] | None
    ) = option(None, "counts of the first divided by those of the second")
    over: Length | None = option(None, "counts over so long, such as 7d")
    against: Length | None = option(None, "items that surely rose against so long before, such as 7d")
    item: Annotated[OneOrMore, Field(min_length=1)] | None = option(None, "what an alert is about")
    quantile: Annotated[Number, Field(gt=0, lt=1)] | None = option(None, "the quantile that an alert is about")
    above: Number | None = option(None, "an alert begins where the number is above this")
    below: Number | None = option(None, "an alert begins where the number is below this")
    clear_below: Number | None = option(None, "an alert ends at this number, or below")
    clear_above: Number | None = option(None, "an alert ends at this number, or above")
    for_: Count = Field(1, alias="for", description="windows in a row that an alert needs")
    largest: Count | None = option(None, "rows of a window at most, those with the largest numbers")

    @property
    def kind(self) -> str:
        """What it is."""
        return next(key for key in KINDS if getattr(self, key) is not None)

    @property
    def condition(self) -> Condition | None:
        """When an alert begins and ends; None of another view."""
        from privstream.mechanisms.views.rules import Condition  # noqa: PLC0415 - late: help pages need none of it

        for sign, begins, clears in ((1, self.above, self.clear_below), (-1, self.below, self.clear_above)):
            if begins is not None:
                return Condition(sign, begins, begins if clears is None else clears, self.for_)
        return None

    @property
    def given(self) -> dict[str, Any]:
        """The keys as the file has them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)

    @model_validator(mode="after")
    def check(self) -> Self:
        """Refuse keys that do not belong together."""
        given = self.given
        kind = next((key for key in KINDS if key in given), None)
        if kind is None:
            raise ValueError(f"must have one of {', '.join(KINDS)}")
        if wrong := [key for key in given if key not in KINDS[kind]]:
            instead = "nothing tells how sums rise" if {kind, wrong[0]} == {"over", "against"} else "it is for others"
            raise WrongKeyError((wrong[0],), f"must not be given with {kind}: {instead}")
        if kind != "ratio" and self.of is None:
            raise WrongKeyError(("of",), "must be given, the name of a question or of another view")
        if self.item is not None and self.quantile is not None:
            raise WrongKeyError(("quantile",), "must not be given with item")
        if self.above is not None and self.clear_below is not None and self.clear_below > self.above:
            rule = f"must be <= {self.above:g}, where an alert begins, got {self.clear_below:g}"
            raise WrongKeyError(("clear_below",), rule)
        if self.below is not None and self.clear_above is not None and self.clear_above < self.below:
            rule = f"must be >= {self.below:g}, where an alert begins, got {self.clear_above:g}"
            raise WrongKeyError(("clear_above",), rule)
        return self
