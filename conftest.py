"""Tests and doctests alike run in one process for each framework."""

pytest_plugins = ["tests.processes.plugin"]
