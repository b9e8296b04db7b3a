"""Audits: what one person changes in a run, by record and replay."""
