"""Kernels of other libraries for the same loss on CUDA: which of them are installed, and able."""

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tiebeam.blocks.readout_loss.options import Options


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call wants, as far as a library may lack it.

    Attributes:
        device: "cuda", "cpu", ...
        dtypes: Of the hidden state and the table, as autocast leaves them.
        bias, weight: Whether there is one.
        stats: Whether more than the loss is to be returned.
        sharded: Whether the table lies in several processes.
    """

    device: str
    dtypes: tuple[torch.dtype, torch.dtype]
    bias: bool
    weight: bool
    stats: bool
    sharded: bool
    options: Options


Call = Callable[[Tensor, Tensor, Tensor, "Tensor | None", "Tensor | None", Options], Tensor]
"""hidden (tokens, width), factor included, table, targets, bias, weight, options -> the loss."""


def choose_fused(asked: Asked) -> Call | None:
    """Return the kernel to call, or None where the blocked path serves: no CUDA, none installed, or none able.

    float16 is never handed on: gradients that are scaled after they are rounded vanish in it.
    """
    first, second = asked.dtypes
    if asked.device != "cuda" or asked.stats or asked.sharded or first != second:
        return None
    if first not in (torch.float32, torch.bfloat16) or torch.compiler.is_compiling():
        return None
    if importlib.util.find_spec("liger_kernel") is not None:
        return _liger
    if importlib.util.find_spec("cut_cross_entropy") is not None and _cut_cross_entropy_is_able(asked):
        return _cut_cross_entropy
    return None


def _liger(
    hidden: Tensor, table: Tensor, targets: Tensor, bias: Tensor | None, weight: Tensor | None, options: Options
) -> Tensor:
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    loss: Tensor = liger_fused_linear_cross_entropy(
        hidden,
        table,
        targets,
        bias=bias,
        ce_weight=weight,
        ignore_index=options.ignore_index,
        lse_square_scale=options.z_loss,
        label_smoothing=options.label_smoothing,
        reduction=options.reduction,
        softcap=options.soft_cap,
        accum_dtype=torch.float32,
    )
    return loss


def _cut_cross_entropy_is_able(asked: Asked) -> bool:
    """It smooths no labels and weights no classes; versions differ in bias and in what they sum gradients in."""
    from cut_cross_entropy import linear_cross_entropy

    known = inspect.signature(linear_cross_entropy).parameters
    sums_wide = asked.dtypes[1] == torch.float32 or "accum_c_fp32" in known
    options = asked.options
    return (
        sums_wide
        and not asked.weight
        and not options.label_smoothing
        and not options.z_loss
        and (not asked.bias or "bias" in known)
    )


def _cut_cross_entropy(
    hidden: Tensor, table: Tensor, targets: Tensor, bias: Tensor | None, weight: Tensor | None, options: Options
) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    known = inspect.signature(linear_cross_entropy).parameters
    more: dict[str, Any] = {"bias": bias} if bias is not None else {}
    more |= {name: True for name in ("accum_e_fp32", "accum_c_fp32") if name in known}
    loss: Tensor = linear_cross_entropy(
        hidden,
        table,
        targets,
        ignore_index=options.ignore_index,
        softcap=options.soft_cap,
        reduction=options.reduction,
        filter_eps=None,  # a rare row of a tied table needs its small gradients
        **more,
    )
    return loss
