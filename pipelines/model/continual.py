"""Questions about public categories and points since the start, and about one data set."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from privstream.pipelines.model.base import option
from privstream.pipelines.model.question import Question, QuestionInfo, Stand, loaded
from privstream.pipelines.model.types import Count, Items, Number, PathText, Texts, Thresholds, no_truth
from pydantic import BeforeValidator, Field, WithJsonSchema

POINT_QUERIES = "queries, one JSON object on each line, which are answered at the end of every window:"


class Categories(Question):
    """What questions about public categories have in common."""

    domain: Items = option(..., "public list of categories, a file with one on each line; others count in no answer")
    unit: Literal["event", "person"] = option("event", "what is protected: one event, or all that one person does")
    max_contributions: Count | None = option(
        None, "categories of one person that count in the whole run; needed with --unit person"
    )
    max_per_window: Count | None = option(None, "categories of one person that count in one window", seldom=True)


class Histogram(Categories):
    """Counts the events of public categories: after every window, how many there have been since the start."""

    question: Literal["histogram"] = "histogram"
    queries: Texts = option(
        ("histogram",), "one or several of histogram (all counts), max, min, median, quantile:Q and top:K"
    )
    largest: Count | None = option(None, "the largest count that you expect, for which the budget is split")

    info: ClassVar[QuestionInfo] = QuestionInfo(
        word="histogram",
        summary="count the events of each category since the start, after every window",
        protected="an event, or a person over the whole run",
        transform="questions.histograms_stages.ContinualHistogram",
        parameters="questions.histograms.HistogramParameters",
        row="HistogramEstimate",
        order=("window_start", "query", "-estimate", "category"),
        title="events since the start",
        published="estimates_published",
        user="person, read with --unit person alone",
        item="category",
        stands={"domain": Stand("categories", "number of categories on the public list", needed=True)},
        error_unit="events",
    )


class Flags(Categories):
    """Reports which public categories have been counted more often than their thresholds since the start: after every
    window, a flag for each category. A flag that is up stays up.
    """

    question: Literal["flags"] = "flags"
    thresholds: Thresholds = option(
        ..., "public number for all categories, or a file with a JSON object that has one for each"
    )

    info: ClassVar[QuestionInfo] = replace(
        Histogram.info,
        word="flags",
        summary="report which categories have been counted more often than their thresholds",
        transform="questions.histograms_stages.ThresholdFlags",
        parameters="questions.histograms.FlagsParameters",
        row="CategoryFlag",
        order=("window_start", "-raised", "category"),
        title="flags",
        published="flags_published",
        assumed={"thresholds": 1},
    )


Universe = Annotated[
    int,
    BeforeValidator(no_truth),
    Field(ge=1, le=1 << 60),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "maximum": 1 << 60}),
]


class Points(Question):
    """What questions about points have in common."""

    universe: Universe = option(..., "points are the whole numbers from 1 to this number")
    queries: PathText | tuple[Any, ...] = option(..., "file with the public queries, see below", metavar="PATH")
    insert_values: Texts | None = option(None, "actions that insert a point (default: all that do not delete)")
    delete_values: Texts | None = option(None, "actions that delete a point (default: none)")

    asked: ClassVar[tuple[str, ...]]
    """The numbers of a query."""

    def further(self, reading: Any) -> dict[str, Any]:
        """Return the queries."""
        given = self.queries
        if isinstance(given, str):
            given = loaded("model.public_lists.point_queries")(given, self.asked)
        return {"standing": tuple(given)}


ABOUT_POINTS: dict[str, Any] = {
    "user": "point, a whole number",
    "item": "action",
    "error_unit": "points",
    "protected": "one event, which is one update of a point",
}


class Ranges(Points):
    """Counts the points in public ranges (slots, prices, ages, addresses) at the end of every window, while points come
    and go.
    """

    question: Literal["ranges"] = "ranges"
    asked: ClassVar[tuple[str, ...]] = ("low", "high")

    info: ClassVar[QuestionInfo] = QuestionInfo(
        **ABOUT_POINTS,
        word="ranges",
        summary="count the points in ranges of numbers (slots, prices), while points come and go",
        transform="questions.points_stages.RangeCounts",
        parameters="questions.points.RangesParameters",
        row="RangeCount",
        order=("window_start", "low", "high"),
        title="points in ranges",
        published="counts_published",
        epilog=f"""{POINT_QUERIES}
  {{"low": 1, "high": 50}}
""",
    )


class Predecessor(Points):
    """Finds the nearest points below and above public points (the last price level with activity, the nearest slot in
    use) at the end of every window.
    """

    question: Literal["predecessor"] = "predecessor"
    asked: ClassVar[tuple[str, ...]] = ("point",)

    info: ClassVar[QuestionInfo] = QuestionInfo(
        **ABOUT_POINTS,
        word="predecessor",
        summary="find the nearest points below and above public points, while points come and go",
        transform="questions.points_stages.PredecessorQueries",
        parameters="questions.points.PredecessorParameters",
        row="NearestPoints",
        order=("window_start", "query"),
        title="nearest points",
        published="neighbours_published",
        epilog=f"""{POINT_QUERIES}
  {{"point": 50}}
""",
    )


class Queries(Question):
    """Answers queries about how many people have which items, in the order in which they are asked, from a public
    hypothesis that learns from its errors.
    """

    question: Literal["queries"] = "queries"
    queries: PathText = option(..., "file with the public queries, see below")
    domain: Items = option(..., "public list of items, a file with one on each line; others count in no answer")
    records: Count = option(..., "public number of people, exact or estimated")
    alpha: Number | None = option(
        None, "part of --records by which an answer may be wrong before the hypothesis is corrected, in (0, 1)"
    )
    planned: Count | None = option(None, "queries for which errors are bounded (default: 1,000)")

    info: ClassVar[QuestionInfo] = QuestionInfo(
        word="queries",
        summary="answer many counting queries about one data set, one after the other",
        protected="a person, over all queries together",
        transform="questions.queries_stages.PrivateQueries",
        parameters="questions.queries.QueriesParameters",
        row="QueryAnswer",
        order=("time", "query"),
        title="answers",
        published="queries_answered",
        bounded=True,
        epilog="""\
queries, one JSON object on each line, in the order in which they are asked:
  {"name": "young", "items": ["0-9", "10-19"]}
The answer is the number of people who have one of the items. Queries and the domain are public.
Each person counts with one item, the last one.
""",
        stands={"domain": Stand("items", "number of items on the public list", needed=True)},
        assumed={"queries": "none"},
    )

    def further(self, reading: Any) -> dict[str, Any]:
        """Return for how many queries accuracy is stated."""
        return {"queries": self.planned}

    def inputs(self, reading: Any) -> dict[str, Any]:
        """Return the queries."""
        return {"queries": loaded("model.public_lists.linear_queries")(self.queries, reading)}
