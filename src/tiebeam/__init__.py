"""One table, two roles: see, initialise and keep the tied embeddings of a language model.

Public names are loaded at first use (PEP 562): `import tiebeam` costs NumPy and loads no framework.

Example:
    >>> import tiebeam
    >>> tiebeam.Report(model="Tiny", framework="torch").tables
    ()
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Importing the reports teaches `Report` to show itself; what they draw with is loaded when they draw.
from tiebeam import reports as reports

if TYPE_CHECKING:
    from tiebeam import checkpoints as checkpoints
    from tiebeam import testing as testing
    from tiebeam.api import (
        Watch,
        advise,
        check_gradients,
        guard,
        initialize,
        initialize_params,
        inspect,
        inspect_optimizer,
        load,
        measure,
        resize,
        resize_params,
        retie,
        save,
        sensitivity,
        tie,
        ties,
        untie,
    )
    from tiebeam.core.advising.advice import Advice
    from tiebeam.core.checkpoint import CheckpointReport
    from tiebeam.core.facts import Lookup, Readout, Table
    from tiebeam.core.finding import Finding
    from tiebeam.core.measuring.gradient_check import GradientCheck
    from tiebeam.core.measuring.measurement import Measurement
    from tiebeam.core.measuring.sensitivity import Sensitivity
    from tiebeam.core.operations.change import Change
    from tiebeam.core.report import Report
    from tiebeam.errors import (
        BackendError,
        CheckpointError,
        InputError,
        RangeError,
        ShapeError,
        StoreError,
        TargetError,
        TiebeamError,
        TieBroken,
        TieError,
        TraceError,
        UnhealthyTie,
    )

    __version__: str

__all__ = [
    "Advice",
    "BackendError",
    "Change",
    "CheckpointError",
    "CheckpointReport",
    "Finding",
    "GradientCheck",
    "InputError",
    "Lookup",
    "Measurement",
    "RangeError",
    "Readout",
    "Report",
    "Sensitivity",
    "ShapeError",
    "StoreError",
    "Table",
    "TargetError",
    "TieBroken",
    "TieError",
    "TiebeamError",
    "TraceError",
    "UnhealthyTie",
    "Watch",
    "advise",
    "check_gradients",
    "guard",
    "initialize",
    "initialize_params",
    "inspect",
    "inspect_optimizer",
    "load",
    "measure",
    "resize",
    "resize_params",
    "retie",
    "save",
    "sensitivity",
    "tie",
    "ties",
    "untie",
]

_HOMES = {
    "tiebeam.api": (
        "Watch",
        "advise",
        "check_gradients",
        "guard",
        "initialize",
        "initialize_params",
        "inspect",
        "inspect_optimizer",
        "load",
        "measure",
        "resize",
        "resize_params",
        "retie",
        "save",
        "sensitivity",
        "tie",
        "ties",
        "untie",
    ),
    "tiebeam.core.advising.advice": ("Advice",),
    "tiebeam.core.checkpoint": ("CheckpointReport",),
    "tiebeam.core.facts": ("Lookup", "Readout", "Table"),
    "tiebeam.core.measuring.gradient_check": ("GradientCheck",),
    "tiebeam.core.measuring.measurement": ("Measurement",),
    "tiebeam.core.operations.change": ("Change",),
    "tiebeam.core.finding": ("Finding",),
    "tiebeam.core.report": ("Report",),
    "tiebeam.core.measuring.sensitivity": ("Sensitivity",),
}
# One module for each framework that someone builds in; they import it.
_FRAMEWORKS = ("equinox", "jax", "keras", "linen", "nnx", "torch")
_PARTS = ("checkpoints", "testing")
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = _version()
    elif name in _FRAMEWORKS + _PARTS:
        value = import_module(f"tiebeam.{name}")
    elif name in __all__:
        value = getattr(import_module(_HOME.get(name, "tiebeam.errors")), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # Without the frameworks' modules: tools that read every name of a module would load each framework.
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tiebeam")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+source"
