"""What is refused before any work: shapes and dtypes without looking at a number, then the numbers themselves."""

import numpy as np
import torch
from torch import Tensor

from tiebeam.blocks.readout_loss import options as say
from tiebeam.errors import InputError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ID_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def check_tensors(given: dict[str, object]) -> None:
    """Raise where something is no dense tensor.

    Raises:
        InputError: It is none.
    """
    for name, t in given.items():
        if not isinstance(t, Tensor) or t.layout != torch.strided:
            raise InputError(
                f"{name} of {say.NAME}",
                got=f"tensor of layout {t.layout}" if isinstance(t, Tensor) else type(t).__name__,
                expected="a dense tensor",
                hint=f"pass its parameter: {name}.weight"
                if isinstance(t, torch.nn.Module)
                else f"torch.as_tensor({name})"
                if isinstance(t, list | tuple | np.ndarray)
                else "",
            )


def check_kinds(hidden: Tensor, table: Tensor, ids: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Raise where a dtype or a device does not fit; looks at no number.

    Args:
        ids: `targets`, and `ids` where given.
        more: `bias`, `weight` and a learned `factor`, where given.

    Raises:
        InputError: It does not.
    """
    for name, t in {"hidden": hidden, "table": table, **more}.items():
        if t.dtype not in FLOATS:
            raise say.not_floating(name, t.dtype)
    for name, t in ids.items():
        if t.dtype not in ID_DTYPES:
            raise say.not_integers(name, t.dtype)
    for name, t in {"table": table, **ids, **more}.items():
        if t.device != hidden.device:
            raise InputError(
                f"{say.NAME} was given tensors of two devices",
                got=f"hidden on {hidden.device}, {name} on {t.device}",
                expected="one device",
                hint=f"{name}.to(hidden.device)",
            )


def check_numbers(tensors: dict[str, Tensor], counted: Tensor) -> None:
    """Raise where one of some tensors holds NaN or infinity.

    What is held in float16 may: that is how a gradient scaler notices that its scale is too large. So may the hidden
    state of a token that does not count, as that of padding, which attended to nothing.

    Args:
        counted: (tokens,).

    Raises:
        InputError: It does.
    """
    for name, t in tensors.items():
        if t.dtype != torch.float16 and t.numel() and not bool(torch.isfinite(torch.stack(torch.aminmax(t))).all()):
            bad = ~torch.isfinite(t)
            bad = bad & counted.unsqueeze(-1) if name == "hidden" else bad
            if bool(bad.any()):
                raise say.not_finite(name, tuple(bad.nonzero()[0].tolist()))


def check_ids(name: str, ids: Tensor, counted: Tensor, shape: list[int], vocab: int) -> None:
    """Raise where an id that counts is no row of the table.

    Args:
        ids, counted: (tokens,).
        shape: What the ids had, for the index that is said.

    Raises:
        InputError: One is.
    """
    bad = counted & ((ids < 0) | (ids >= vocab))
    if bool(bad.any()):
        at = bad.nonzero().flatten()
        index = torch.unravel_index(at[0], tuple(shape)) if shape else (at[0],)
        raise say.outside(name, tuple(int(i) for i in index), int(ids[at[0]]), len(at), vocab)
