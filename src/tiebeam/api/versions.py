"""Versions that a report carries, so that a figure can be traced to what computed it."""

import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version


def versions(framework: str) -> dict[str, str]:
    """Versions of tiebeam, Python, NumPy and the model's framework."""
    return dict(_versions(framework))


@lru_cache  # package metadata is read from disk
def _versions(framework: str) -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ("tiebeam", "numpy", framework):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a source tree that was never installed
            found[package] = "source"
    return found
