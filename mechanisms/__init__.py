"""Differentially private mechanisms over streams, on numpy arrays. Never imports Apache Beam."""

from privstream.mechanisms.continual.cardinality import SetCardinality
from privstream.mechanisms.continual.histogram import HistogramQueries
from privstream.mechanisms.continual.incremental_predecessor import IncrementalPredecessor
from privstream.mechanisms.continual.predecessor import DynamicPredecessor, Neighbours, PredecessorStep
from privstream.mechanisms.continual.queries import (
    Histogram,
    HistogramQuery,
    MaxSum,
    MinSum,
    Monotone,
    Quantile,
    TopK,
)
from privstream.mechanisms.continual.ranges import RangeCounter, Updates
from privstream.mechanisms.guarantee_records import read_guarantee_file
from privstream.mechanisms.keyed_counts.found_keys import FoundKeys
from privstream.mechanisms.keyed_counts.key_table import KeyedRows, KeyedStep
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.monitor.holdings import Holdings
from privstream.mechanisms.monitor.monitor import ThresholdMonitor
from privstream.mechanisms.noise.sources import KeyedNoise, NoiseSource, SeededNoise
from privstream.mechanisms.numeric_quantiles import BinnedStep, NumericQuantiles, QuantileRows
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.mechanisms.selection.multiplicative_weights import LinearQueries, OnlineMultiplicativeWeights
from privstream.mechanisms.selection.queries import QueryMechanism
from privstream.mechanisms.selection.sparse_vector import SparseVector
from privstream.mechanisms.selection.top_k import ExponentialMechanismWithGap, MeasuredTopK, NoisyTopK

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
