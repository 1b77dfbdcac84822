"""Versions that a report carries, so that a figure can be traced to what computed it."""

import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

#: What else computes a model's figures, or its loss, where it is loaded; by the framework's package.
BESIDE = {"jax": ("jaxlib", "optax")}


def versions(packages: Sequence[str], model: Any = None) -> dict[str, str]:
    """Versions of Python, tiebeam, NumPy, the framework, and the packages that the model's classes come from.

    Args:
        packages: What the model's framework consists of.
        model: The framework's own object: a Flax module brings flax, a transformers model transformers.

    Returns:
        Versions by package name. A framework that runs from a source tree is of the version "source".

    Example:
        >>> import numpy
        >>> versions(["numpy"])["numpy"] == numpy.__version__
        True
    """
    beside = (b for p in packages for b in BESIDE.get(p, ()) if b in sys.modules)
    return dict(_versions(tuple(dict.fromkeys((*packages, *beside))), _homes(model)))


def _homes(model: Any) -> tuple[str, ...]:
    """Packages of the model's classes, its own first."""
    if model is None:
        return ()
    homes = (c.__module__.partition(".")[0] for c in type(model).__mro__)
    return tuple(dict.fromkeys(h for h in homes if h not in sys.stdlib_module_names))


@lru_cache  # package metadata is read from disk
def _versions(packages: tuple[str, ...], homes: tuple[str, ...]) -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in dict.fromkeys(("tiebeam", "numpy", *packages)):
        found[package] = _version(package) or "source"
    for package in homes:
        known = _version(package)  # a model's own module need not be a package
        if known is not None:
            found.setdefault(package, known)
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
