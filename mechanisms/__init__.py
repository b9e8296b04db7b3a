"""Differentially private mechanisms over streams, on numpy arrays. Never imports Apache Beam."""

from privstream.mechanisms.above_threshold import AboveThreshold
from privstream.mechanisms.adaptive_sparse_vector import AdaptiveSparseVector
from privstream.mechanisms.binary_tree import BinaryTreeCounter
from privstream.mechanisms.bottom_up_tree import BottomUpTreeCounter
from privstream.mechanisms.buffered_toeplitz import BufferedToeplitzCounter
from privstream.mechanisms.column_flags import ColumnFlags
from privstream.mechanisms.dynamic_points import Updates
from privstream.mechanisms.dynamic_predecessor import DynamicPredecessor
from privstream.mechanisms.exponential_mechanism import ExponentialMechanismWithGap
from privstream.mechanisms.guarantee import PrivacyGuarantee
from privstream.mechanisms.histogram_queries import HistogramQueries
from privstream.mechanisms.histogram_query import (
    Histogram,
    HistogramQuery,
    MaxSum,
    MinSum,
    Monotone,
    Quantile,
    SumSelect,
    TopK,
    TopKSelect,
)
from privstream.mechanisms.hybrid_sparse_vector import HybridSparseVector
from privstream.mechanisms.hybrid_top_k import HybridNoisyTopK
from privstream.mechanisms.incremental_predecessor import IncrementalPredecessor
from privstream.mechanisms.kary_tree import KaryTreeCounter
from privstream.mechanisms.measured_top_k import MeasuredTopK
from privstream.mechanisms.multiplicative_weights import LinearQueries, OnlineMultiplicativeWeights
from privstream.mechanisms.noise import KeyedNoise, NoiseSource, SeededNoise
from privstream.mechanisms.noisy_top_k import NoisyTopK
from privstream.mechanisms.numeric_sparse import NumericSparse
from privstream.mechanisms.predecessor_answers import Neighbours, PredecessorStep
from privstream.mechanisms.range_counter import RangeCounter, RangeStep
from privstream.mechanisms.set_cardinality import SetCardinality
from privstream.mechanisms.sparse import Sparse
from privstream.mechanisms.sparse_vector_with_gap import SparseVectorWithGap
from privstream.mechanisms.square_root_toeplitz import SquareRootToeplitzCounter
from privstream.mechanisms.threshold_monitor import Holdings, ThresholdMonitor
from privstream.mechanisms.unknown_horizon import UnknownHorizonCounter

__all__ = [
    "AboveThreshold",
    "AdaptiveSparseVector",
    "BinaryTreeCounter",
    "BottomUpTreeCounter",
    "BufferedToeplitzCounter",
    "ColumnFlags",
    "DynamicPredecessor",
    "ExponentialMechanismWithGap",
    "Histogram",
    "HistogramQueries",
    "HistogramQuery",
    "Holdings",
    "HybridNoisyTopK",
    "HybridSparseVector",
    "IncrementalPredecessor",
    "KaryTreeCounter",
    "KeyedNoise",
    "LinearQueries",
    "MaxSum",
    "MeasuredTopK",
    "MinSum",
    "Monotone",
    "Neighbours",
    "NoiseSource",
    "NoisyTopK",
    "NumericSparse",
    "OnlineMultiplicativeWeights",
    "PredecessorStep",
    "PrivacyGuarantee",
    "Quantile",
    "RangeCounter",
    "RangeStep",
    "SeededNoise",
    "SetCardinality",
    "Sparse",
    "SparseVectorWithGap",
    "SquareRootToeplitzCounter",
    "SumSelect",
    "ThresholdMonitor",
    "TopK",
    "TopKSelect",
    "UnknownHorizonCounter",
    "Updates",
]
