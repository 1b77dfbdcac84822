"""Versions that a report carries, so that a figure can be traced to what computed it."""

import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of tiebeam, Python, NumPy and the packages that the model's framework consists of."""
    return dict(_versions(packages))


@lru_cache  # package metadata is read from disk
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in ("tiebeam", "numpy", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a source tree that was never installed
            found[package] = "source"
    return found
