"""One folder a framework; `resolve` asks which one a model belongs to without importing any."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from tiebeam.errors import BackendError

if TYPE_CHECKING:
    from tiebeam.backends.protocol import Model

#: framework module -> (class that its models descend from, backend module, adapter)
REGISTRY = {
    "torch": ("torch.nn.modules.module.Module", "tiebeam.backends.torch.model", "TorchModel"),
}


def resolve(model: object) -> "Model":
    """The backend's view of a model.

    Args:
        model: A model of a framework in `REGISTRY`.

    Raises:
        BackendError: It is none.
    """
    ancestry = [f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__]
    for framework, (base, home, adapter) in REGISTRY.items():
        if framework in sys.modules and base in ancestry:
            made: Model = getattr(import_module(home), adapter)(model)
            return made
    raise BackendError(
        f"tiebeam cannot look at a {type(model).__name__}",
        got=f"{ancestry[0]}, a class" if isinstance(model, type) else ancestry[0],
        expected="a model: " + ", ".join(base for base, _, _ in REGISTRY.values()),
        hint="pass an instance of the model itself, not a checkpoint path, a config or a class",
    )
