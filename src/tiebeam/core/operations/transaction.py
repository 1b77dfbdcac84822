"""All of it or nothing: whoever writes says how to undo it, and a failure undoes everything in reverse."""

from collections.abc import Callable
from types import TracebackType


class Transaction:
    """What undoes each write so far.

    Leaving the block by an exception, an interrupt too, undoes all of them, the last one first.

    Example:
        >>> kept = [1]
        >>> try:
        ...     with Transaction() as undo:
        ...         kept.append(2)
        ...         undo.did(kept.pop)
        ...         raise ValueError
        ... except ValueError:
        ...     kept
        [1]
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def did(self, undo: Callable[[], object]) -> None:
        """Remember how to undo what was just done, or is about to be."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Undo everything."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            self.undo()
