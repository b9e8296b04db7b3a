"""Runs a pipeline on the runner that was asked for, and checks first what it needs."""
