"""What a module of one framework says where that framework is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from tiebeam.errors import MissingFrameworkError

NAMES = {
    "torch": "PyTorch",
    "jax": "JAX",
    "flax": "Flax",
    "equinox": "Equinox",
    "optax": "optax",
    "keras": "Keras",
}


@contextmanager
def needing(*modules: str, what: str) -> Iterator[None]:
    """Around imports: turns the absence of a framework into one clear refusal.

    Args:
        modules: What is needed, the last of them being the extra of tiebeam that brings them all.
        what: That needs it.

    Raises:
        MissingFrameworkError: One of them is not installed. Any other module's absence is raised as it is.

    Example:
        >>> with needing("jax", "flax", what="this"):
        ...     raise ModuleNotFoundError("No module named 'flax'", name="flax")
        Traceback (most recent call last):
        tiebeam.errors.MissingFrameworkError: this needs Flax
          got: No module named 'flax'
        Hint: pip install 'tiebeam[flax]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        if absent not in modules:
            raise
        raise missing(absent, what=what, extra=modules[-1], got=str(error)) from error


def missing(module: str, *, what: str, extra: str, got: str) -> MissingFrameworkError:
    """The refusal itself."""
    return MissingFrameworkError(f"{what} needs {NAMES[module]}", got=got, hint=f"pip install 'tiebeam[{extra}]'")
