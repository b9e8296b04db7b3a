"""Audits that users run: attacks on the transforms themselves, and what can be concluded from what they find."""
