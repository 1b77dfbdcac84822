"""What files and configs say about a table, read without running any of their code."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiebeam.checkpoints.archive import Archive as Archive
    from tiebeam.checkpoints.archive import Entry as Entry
    from tiebeam.checkpoints.fixing.fix import fix as fix
    from tiebeam.checkpoints.inspection import inspect as inspect
    from tiebeam.checkpoints.opening import open_archive as open_archive
    from tiebeam.core.checkpoint import CheckpointReport as CheckpointReport
    from tiebeam.core.checkpoint_fix import FixPlan as FixPlan

__all__ = ["Archive", "CheckpointReport", "Entry", "FixPlan", "fix", "inspect", "open_archive"]

# Loaded when asked for: whoever reads a config alone pays for nothing else.
_HOMES = {
    "Archive": "tiebeam.checkpoints.archive",
    "CheckpointReport": "tiebeam.core.checkpoint",
    "Entry": "tiebeam.checkpoints.archive",
    "FixPlan": "tiebeam.core.checkpoint_fix",
    "fix": "tiebeam.checkpoints.fixing.fix",
    "inspect": "tiebeam.checkpoints.inspection",
    "open_archive": "tiebeam.checkpoints.opening",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
