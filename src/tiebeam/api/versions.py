"""Versions that a report carries, so that a figure can be traced to what computed it."""

import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

#: What else computes a model's figures, or its loss, where it is loaded; by the framework.
BESIDE = {"jax": ("jaxlib", "optax")}


def versions(framework: str, model: Any = None) -> dict[str, str]:
    """Versions of Python, tiebeam, NumPy, the framework, and the packages that the model's classes come from.

    Args:
        framework: The backend's name: its package.
        model: The framework's own object: a Flax module brings flax, a transformers model transformers.

    Returns:
        Versions by package name. A package is named where it is loaded and installed; "source" stands for one that
        runs from a source tree.

    Example:
        >>> import numpy
        >>> versions("numpy")["numpy"] == numpy.__version__
        True
    """
    beside = [p for p in (*BESIDE.get(framework, ()), *_runs_on(framework)) if p in sys.modules]
    return dict(_versions(framework, tuple(beside), _homes(model)))


def _homes(model: Any) -> tuple[str, ...]:
    """Packages of the model's classes, its own first."""
    if model is None:
        return ()
    homes = (c.__module__.partition(".")[0] for c in type(model).__mro__)
    return tuple(dict.fromkeys(h for h in homes if h not in sys.stdlib_module_names))


def _runs_on(framework: str) -> tuple[str, ...]:
    """The package that Keras computes with."""
    keras = sys.modules.get("keras") if framework == "keras" else None
    return () if keras is None else (str(keras.config.backend()),)


@lru_cache  # package metadata is read from disk
def _versions(framework: str, beside: tuple[str, ...], homes: tuple[str, ...]) -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in dict.fromkeys(("tiebeam", "numpy", framework, *beside)):
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
