"""How sure tests of laws and attacks with samples are."""

FALSE_ALARM = 1e-10
"""Probability with which a test may reject the law that is right."""
