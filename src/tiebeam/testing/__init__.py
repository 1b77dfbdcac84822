"""For tests of tiebeam and of code built on it: assertions on ties; a probe of its own; what backends promise.

Everything is loaded at first use: a pytest plugin lives here too, and most runs need none of it. `BackendContract`
needs pytest, hypothesis and jsonschema, the extra `testing`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiebeam.testing.contract import BackendContract as BackendContract
    from tiebeam.testing.contract import Refusal as Refusal
    from tiebeam.testing.probe import Probed as Probed
    from tiebeam.testing.probe import probe_table as probe_table
    from tiebeam.testing.ties import assert_survives as assert_survives
    from tiebeam.testing.ties import assert_tied as assert_tied
    from tiebeam.zoo.blueprint import Blueprint as Blueprint
    from tiebeam.zoo.blueprint import Builder as Builder
    from tiebeam.zoo.blueprint import Built as Built
    from tiebeam.zoo.blueprint import Step as Step

_HOMES = {
    **dict.fromkeys(("Probed", "probe_table"), "tiebeam.testing.probe"),
    **dict.fromkeys(("assert_survives", "assert_tied"), "tiebeam.testing.ties"),
    **dict.fromkeys(("Blueprint", "Builder", "Built", "Step"), "tiebeam.zoo.blueprint"),
}
_NEEDED = ("pytest", "hypothesis", "jsonschema")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "BackendContract", "Refusal"})


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name not in ("BackendContract", "Refusal"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
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
