"""Why a forward pass failed, where the shapes of shared parameters, or missing values, say so."""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import nn

from tiebeam.backends.torch.names import all_parameters
from tiebeam.core.finding import Finding
from tiebeam.errors import InputError, ShapeError


def unfit_modules(model: nn.Module) -> Iterator[ShapeError]:
    """Linear layers whose weight or bias no longer serves them, as an edit after building leaves them."""
    owners: dict[int, str] = {}
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        # Registered parameters alone: reading an attribute may run a parametrisation, which may change buffers.
        weight, bias = (module._parameters.get(n) for n in ("weight", "bias"))
        if weight is None:
            continue
        owner = owners.setdefault(id(weight), f"{path}.weight" if path else "weight")
        if not isinstance(module, nn.Linear):
            continue
        name = f"{path}.weight" if path else "weight"
        if weight.ndim == 2 and weight.shape[1] != module.in_features:
            yield ShapeError(
                f"{name!r} is {owner!r} and does not fit the layer that reads it",
                got=f"shape {tuple(weight.shape)}",
                expected=f"(vocab, width) = ({weight.shape[0]}, {module.in_features})",
                hint=f"project {module.in_features} -> {weight.shape[1]} before it, or use a table of that width",
            )
        elif bias is not None and bias.shape[0] != weight.shape[0]:
            yield ShapeError(
                f"the bias beside {name!r} was left behind when the table changed",
                got=f"{bias.shape[0]} entries",
                expected=f"{weight.shape[0]}, one for each row of {owner!r}",
                hint=f"slice or pad {path + '.' if path else ''}bias with the same rows, and every alias of it",
            )


def check_shaped(model: nn.Module) -> None:
    """Refuse parameters that get their shape in the first pass: it would make them, and not as it found them.

    Raises:
        InputError: There is one.
    """
    tensors = chain(model.named_parameters(), model.named_buffers())
    if lazy := [name for name, t in tensors if nn.parameter.is_lazy(t)]:
        raise InputError(
            f"{lazy[0]!r} has no shape yet: {type(model).__name__} makes it in its first pass",
            got=f"{len(lazy)} parameters or buffers of lazy modules",
            expected="a model that has run once",
            hint="call the model on your inputs, then inspect it",
        )


def without_values(model: nn.Module) -> Finding | None:
    """Parameters left on meta while others are real, and nothing that would load them on use."""
    parameters = all_parameters(model)
    meta = [n for n, p in parameters.items() if p.device.type == "meta"]
    real = {n: p for n, p in model.named_parameters() if p.device.type != "meta"}
    if not meta or not real or any(hasattr(m, "_hf_hook") for m in model.modules()):
        return None
    twin = next((n for n, p in real.items() if p.ndim == 2 and p.shape == parameters[meta[0]].shape), None)
    home, _, attribute = meta[0].rpartition(".")
    target = f'model.get_submodule("{home}")' if home else "model"
    return Finding(
        "meta-left", "error", meta[0],
        f"{', '.join(meta[:4])} {'has' if len(meta) == 1 else 'have'} no values while {len(real)} other parameters do: "
        "the tie was not there when values were loaded",
        fix="" if twin is None else f'{target}.{attribute} = model.get_parameter("{twin}")',
        hint="tie before loading, so that one load fills both names",
    )  # fmt: skip
