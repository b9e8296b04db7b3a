"""Differentially private mechanisms over streams, on numpy arrays. Never imports Apache Beam."""

from privstream.mechanisms.above_threshold import AboveThreshold
from privstream.mechanisms.adaptive_sparse_vector import AdaptiveSparseVector
from privstream.mechanisms.exponential_mechanism import ExponentialMechanismWithGap
from privstream.mechanisms.guarantee import PrivacyGuarantee
from privstream.mechanisms.hybrid_sparse_vector import HybridSparseVector
from privstream.mechanisms.hybrid_top_k import HybridNoisyTopK
from privstream.mechanisms.noise import KeyedNoise, NoiseSource, SeededNoise
from privstream.mechanisms.noisy_top_k import NoisyTopK
from privstream.mechanisms.numeric_sparse import NumericSparse
from privstream.mechanisms.sparse import Sparse
from privstream.mechanisms.sparse_vector_with_gap import SparseVectorWithGap
from privstream.mechanisms.threshold_monitor import Holdings, ThresholdMonitor

__all__ = [
    "AboveThreshold",
    "AdaptiveSparseVector",
    "ExponentialMechanismWithGap",
    "Holdings",
    "HybridNoisyTopK",
    "HybridSparseVector",
    "KeyedNoise",
    "NoiseSource",
    "NoisyTopK",
    "NumericSparse",
    "PrivacyGuarantee",
    "SeededNoise",
    "Sparse",
    "SparseVectorWithGap",
    "ThresholdMonitor",
]
