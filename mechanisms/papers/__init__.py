"""Mechanisms from papers that no transform uses: for reference, and to compare with."""
