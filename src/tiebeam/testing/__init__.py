"""For tests of tiebeam and of code built on it: measurements that share no code with the trace; what backends promise.

`BackendContract` is loaded at first use: it needs pytest, hypothesis and jsonschema, the extra `testing`.
"""

from typing import TYPE_CHECKING

from tiebeam.testing.probe import Probed as Probed
from tiebeam.testing.probe import probe_table as probe_table
from tiebeam.zoo.blueprint import Blueprint as Blueprint
from tiebeam.zoo.blueprint import Builder as Builder
from tiebeam.zoo.blueprint import Built as Built
from tiebeam.zoo.blueprint import Step as Step

if TYPE_CHECKING:
    from tiebeam.testing.contract import BackendContract as BackendContract
    from tiebeam.testing.contract import Refusal as Refusal

_NEEDED = ("pytest", "hypothesis", "jsonschema")


def __getattr__(name: str) -> object:
    if name not in ("BackendContract", "Refusal"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        rewrite = import_module("pytest").register_assert_rewrite
        rewrite("tiebeam.testing.contract")  # so that a failing sentence says what it compared
        contract = import_module("tiebeam.testing.contract")
    except ModuleNotFoundError as missing:
        if missing.name not in _NEEDED:
            raise
        raise ModuleNotFoundError(
            f"tiebeam.testing.{name} needs {missing.name}\nHint: pip install 'tiebeam[testing]'", name=missing.name
        ) from missing
    return getattr(contract, name)
