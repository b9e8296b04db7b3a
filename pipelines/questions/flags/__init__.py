"""Flags: which public categories have been counted more often than their thresholds so far."""
