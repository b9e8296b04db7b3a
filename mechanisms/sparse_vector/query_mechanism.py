"""QueryMechanism: what mechanisms on queries of sensitivity 1 share, in this room and in `free_gap`."""

from abc import ABC, abstractmethod
from typing import ClassVar

from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.privacy.accounting import PrivacyCurve, PureDp
from privstream.mechanisms.privacy.caveats import PUBLISHED_FLOATS, noise_caveats
from privstream.mechanisms.privacy.guarantee import NEIGHBOURING, PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.mechanisms.sparse_vector.hidden_threshold import LARGEST, HiddenThreshold, IntegersOrReals

WHOLE_RUN = "It covers the whole run"
ONE_SELECTION = "It covers one selection: those of several add up."
PUBLIC_ORDER: tuple[str, ...] = ("all parameters", "the number of queries and their order")
ONE_RELEASE = "The queries may depend on everything published before."
LAWS = ("exponential", "laplace")
_SMALLEST_SCALE, _LARGEST_SCALE = 1e-6, 1e11  # what the laws draw exactly, and fits into 64-bit integers


class QueryMechanism(ABC):
    """Parameters and guarantee of a mechanism on queries. A parameter that a subclass does not have is as it is here.

    If a subclass does not say otherwise, it tests queries one after the other, in a run.
    """

    epsilon: float
    neighbouring: str
    threshold: float = 0
    integer: bool = False
    monotone: bool = False
    noise_law: str = "laplace"
    proof: ClassVar[str]
    floats: ClassVar[str] = PUBLISHED_FLOATS
    public: ClassVar[tuple[str, ...]] = ("all parameters", "the thresholds", "the number of queries")
    adaptivity: ClassVar[str] = "Queries and thresholds may depend on all earlier answers."

    @property
    def guarantee(self) -> PrivacyGuarantee:
        """Privacy of the whole run, or of one selection."""
        return PrivacyGuarantee(
            unit=self.unit,
            neighbouring=self.neighbouring,
            epsilon=self.epsilon,
            delta=getattr(self, "delta", 0.0),
            limits=self.limits,
            public=self.public,
            adaptivity=self.adaptivity,
            proof=self.proof,
            caveats=noise_caveats(self.integer, self.floats),
            curve=self.curve,
        )

    @property
    def unit(self) -> PrivacyUnit:
        """What the guarantee protects."""
        return PrivacyUnit(what="query", same_direction=self.monotone)

    @property
    @abstractmethod
    def limits(self) -> tuple[str, ...]:
        """What the guarantee covers."""

    @property
    def curve(self) -> PrivacyCurve:
        """All (epsilon, delta) of what the guarantee covers."""
        return PureDp(self.epsilon)

    def _check_queries(self, *scales: float) -> None:
        """Check the parameters that these mechanisms share, and the noise scales that they give."""
        if not isinstance(self.integer, bool):
            raise TypeError(f"integer must be True or False, got {type(self.integer).__name__}")
        checks.real("threshold", self.threshold)
        if self.integer and checks.integer("threshold", self.threshold, minimum=-LARGEST) > LARGEST:
            raise ValueError(f"threshold must be <= 2**60, got {self.threshold}")
        checks.one_of("noise_law", self.noise_law, LAWS)
        checks.one_of("neighbouring", self.neighbouring, tuple(NEIGHBOURING))
        for scale in scales:
            if not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
                raise ValueError(f"epsilon must give a noise scale in [1e-6, 1e11], got a noise scale of {scale:g}")
        if not isinstance(self.monotone, bool):
            raise TypeError(f"monotone must be True or False, got {type(self.monotone).__name__}")
        if self.monotone and self.neighbouring == "replace_one":
            raise ValueError("monotone must be False for replace_one: one count may grow while another one shrinks")

    def _vector(self, values: ArrayLike) -> IntegersOrReals:
        """Return the values of queries as a fresh array of integers or real numbers."""
        return HiddenThreshold(scale=1.0, max_hits=1, integer=self.integer).vector(values)
