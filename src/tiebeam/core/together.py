"""A setting of the whole process, which several threads may want at once."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack


class Together:
    """Set while any thread is inside; the last to leave puts back what the first one found.

    Each on its own would put back what it found itself: where they overlap, that is what another has set, for good.

    Args:
        make: Gives the context that sets it and puts it back.

    Example:
        >>> from contextlib import redirect_stdout
        >>> from io import StringIO
        >>> quiet = Together(lambda: redirect_stdout(StringIO()))
        >>> with quiet, quiet:
        ...     print("nobody reads this")
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._inside = 0
        self._set = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._set.enter_context(self._make())
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._set.close()
