"""Looking at a model without the garbage collector in between."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Recording and reading make thousands of small objects: a collection in between would scan the whole process.

    What frees activations is their reference count, as ever.

    Example:
        >>> with no_collection():
        ...     gc.isenabled()
        False
        >>> gc.isenabled()
        True
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
