"""Everything tiebeam raises on purpose: one base class, a few leaves.

A message says what and where, what was got, what was expected, and what to do about it.
"""


class TiebeamError(Exception):
    """Base of every error that tiebeam raises.

    Args:
        what: What is wrong and where, naming the parameter path or file.
        got: What was found.
        expected: What would have been right.
        hint: What to do about it.

    Example:
        >>> print(TiebeamError("table 'wte.weight' has no rows", got="shape (0, 8)", hint="set vocab"))
        table 'wte.weight' has no rows
          got: shape (0, 8)
        Hint: set vocab
    """

    def __init__(self, what: str, *, got: str = "", expected: str = "", hint: str = "") -> None:
        self.what, self.got, self.expected, self.hint = what, got, expected, hint
        lines = [what]
        lines += [f"  got: {got}"] if got else []
        lines += [f"  expected: {expected}"] if expected else []
        lines += [f"Hint: {hint}"] if hint else []
        super().__init__("\n".join(lines))


class BackendError(TiebeamError, TypeError):
    """The object is no model of a framework that tiebeam knows, or the framework is missing."""


class MissingFrameworkError(BackendError, ImportError):
    """The framework is not installed; also an `ImportError`, for those who try an import and go on without."""


class CheckpointError(TiebeamError, ValueError):
    """A file is not what it says it is, is damaged, or asks for more than it holds."""


class InputError(TiebeamError, ValueError):
    """The model refused the inputs, or inputs could not be made."""


class NotFiniteError(InputError):
    """Numbers that are read hold NaN or infinity, as those of a training that has diverged."""


class ShapeError(TiebeamError, ValueError):
    """Two tensors that must fit do not."""


class TraceError(TiebeamError, RuntimeError):
    """The forward pass cannot be followed (an operation has no meta kernel, for one)."""


class GradientError(TiebeamError, RuntimeError):
    """A derivative that does not exist here was asked for."""


class RangeError(TiebeamError, ValueError):
    """A number lies outside what the mathematics allows."""


class TargetError(TiebeamError, ValueError):
    """A command-line target cannot be turned into a model."""


class StoreError(TiebeamError, RuntimeError):
    """The file that keeps experiments cannot be read or written."""


class UnhealthyTie(TiebeamError, AssertionError):
    """`Report.assert_healthy` found an error or a warning."""


class TieError(TiebeamError, ValueError):
    """A table cannot be tied, parted, resized, saved or loaded as asked; nothing was changed."""


class TieBroken(TiebeamError, AssertionError):
    """A guarded tie is gone."""
