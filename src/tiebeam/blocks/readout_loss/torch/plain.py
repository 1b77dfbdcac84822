"""The same loss by way of its logits, for whoever has to see them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tiebeam.blocks.readout_loss import sight
from tiebeam.blocks.readout_loss.options import Options
from tiebeam.blocks.readout_loss.torch.statistics import ReadoutStats


def in_sight() -> bool:
    """Whether logits are to be seen; what is compiled asks nobody."""
    return not torch.compiler.is_compiling() and sight.in_sight()


def plain(
    hidden: Tensor,
    table: Tensor,
    targets: Tensor,
    factor: float | Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    inputs: Tensor | None,
    options: Options,
) -> tuple[Tensor, ReadoutStats]:
    """Return the loss and its statistics; arguments as those of `readout_loss`, targets in int64."""
    read = hidden if isinstance(factor, float) and factor == 1.0 else hidden * factor
    logits = F.linear(read, table, bias)
    if options.soft_cap is not None:
        logits = options.soft_cap * torch.tanh(logits / options.soft_cap)
    counted = targets != options.ignore_index
    loss = F.cross_entropy(
        logits.flatten(0, -2) if logits.ndim > 1 else logits[None],
        targets.reshape(-1),
        weight=weight,
        ignore_index=options.ignore_index,
        reduction=options.reduction,
        label_smoothing=options.label_smoothing,
    )
    lse = torch.logsumexp(logits, -1)
    if options.z_loss:
        z = options.z_loss * torch.where(counted, lse, 0.0).square()
        loss = loss + (z.reshape(-1) if options.reduction == "none" else z.sum())
        if options.reduction == "mean":
            loss = loss - z.sum() + z.sum() / counted.sum()
    loss = loss.view(targets.shape) if options.reduction == "none" else loss
    with torch.no_grad():
        at = torch.where(counted, targets, 0).unsqueeze(-1)
        best = (logits.gather(-1, at).squeeze(-1) >= logits.amax(-1)) & counted
        own = None if inputs is None else logits.gather(-1, inputs.long().unsqueeze(-1)).squeeze(-1)
        nan = float("nan")
        own = None if own is None else own.masked_fill(~counted, nan)
        return loss, ReadoutStats(lse.detach().masked_fill(~counted, nan), best, own, counted)
