"""Differentially private mechanisms over streams, on numpy arrays. Never imports Apache Beam."""

from .continual.cardinality import SetCardinality
from .continual.histogram import HistogramQueries
from .continual.predecessor import DynamicPredecessor, IncrementalPredecessor, Neighbours, PredecessorStep
from .continual.queries import Histogram, HistogramQuery, MaxSum, MinSum, Monotone, Quantile, TopK
from .continual.ranges import RangeCounter, Updates
from .keyed_counts.found_keys import FoundKeys
from .keyed_counts.keyed_counts import KeyedCounts, KeyedRows, KeyedStep
from .monitor.monitor import Holdings, ThresholdMonitor
from .noise.sources import KeyedNoise, NoiseSource, SeededNoise
from .numeric_quantiles import BinnedStep, NumericQuantiles, QuantileRows
from .privacy.guarantee import PrivacyGuarantee, read_guarantee_file
from .privacy.units import PrivacyUnit
from .selection.multiplicative_weights import LinearQueries, OnlineMultiplicativeWeights
from .selection.sparse_vector import QueryMechanism, SparseVector
from .selection.top_k import ExponentialMechanismWithGap, MeasuredTopK, NoisyTopK

__all__ = [
    "BinnedStep",
    "DynamicPredecessor",
    "ExponentialMechanismWithGap",
    "FoundKeys",
    "Histogram",
    "HistogramQueries",
    "HistogramQuery",
    "Holdings",
    "IncrementalPredecessor",
    "KeyedCounts",
    "KeyedNoise",
    "KeyedRows",
    "KeyedStep",
    "LinearQueries",
    "MaxSum",
    "MeasuredTopK",
    "MinSum",
    "Monotone",
    "Neighbours",
    "NoiseSource",
    "NoisyTopK",
    "NumericQuantiles",
    "OnlineMultiplicativeWeights",
    "PredecessorStep",
    "PrivacyGuarantee",
    "PrivacyUnit",
    "Quantile",
    "QuantileRows",
    "QueryMechanism",
    "RangeCounter",
    "SeededNoise",
    "SetCardinality",
    "SparseVector",
    "ThresholdMonitor",
    "TopK",
    "Updates",
    "read_guarantee_file",
]
