"""Differentially private mechanisms over streams, on numpy arrays. Never imports Apache Beam."""

from privstream.mechanisms.above_threshold import AboveThreshold
from privstream.mechanisms.guarantee import PrivacyGuarantee
from privstream.mechanisms.noise import KeyedNoise, NoiseSource, SeededNoise
from privstream.mechanisms.numeric_sparse import NumericSparse
from privstream.mechanisms.sparse import Sparse
from privstream.mechanisms.threshold_monitor import Holdings, ThresholdMonitor

__all__ = [
    "AboveThreshold",
    "Holdings",
    "KeyedNoise",
    "NoiseSource",
    "NumericSparse",
    "PrivacyGuarantee",
    "SeededNoise",
    "Sparse",
    "ThresholdMonitor",
]
