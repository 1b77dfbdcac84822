"""Which dtype products are made in."""

import torch
from torch import Tensor

NARROW = (torch.bfloat16, torch.float16)


def product_dtype(hidden: Tensor, table: Tensor) -> torch.dtype:
    """Return what hidden states and rows are multiplied in; sums are of float32 or wider whatever it is.

    Where both are bfloat16, or autocast makes them so, products are bfloat16 on devices that have an instruction for
    them. Elsewhere bfloat16 is widened piece by piece, which is faster and more exact than what a processor without
    one does. float16 is widened everywhere: probabilities of a large vocabulary lie below its range.

    Example:
        >>> product_dtype(torch.ones(1, dtype=torch.float64), torch.ones(1))
        torch.float64
    """
    device = hidden.device.type
    together = torch.promote_types(hidden.dtype, table.dtype)
    if together == torch.float64:
        return torch.float64
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):  # not on meta
        together = torch.get_autocast_dtype(device)
    return torch.bfloat16 if together == torch.bfloat16 and multiplies_bfloat16(device) else torch.float32


def multiplies_bfloat16(device: str) -> bool:
    """Whether a device multiplies bfloat16 faster than float32."""
    if device != "cpu":
        return True
    asked = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(ask() for ask in asked if ask is not None)
