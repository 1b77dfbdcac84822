"""`tiebeam.sensitivity`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tiebeam.api.measurement import prepared
from tiebeam.api.refusals import refused_inputs
from tiebeam.backends.protocol import Quantisable, RefusedError
from tiebeam.core.measuring.sensitivity import Sensitivity, measure_sensitivity


def sensitivity(
    model: Any,
    batch: Any,
    *,
    params: Any = None,
    bits: Sequence[int] = (8, 6, 4),
    group: int | None = 32,
    tolerance: float = 0.01,
) -> Sensitivity:
    """See what few bits do to each role of a table by itself, and whether one quantised table can serve both.

    The table is rounded to each number of bits, with one scale for a row and with one for each group of its entries,
    for the lookup alone, the readout alone, and both; the next-token distributions are held against the model's own.
    Weights alone are rounded, to the nearest of evenly spaced values; kernels, and cleverer rounding, are left to those
    who make them. It takes a pass for each: three times `bits`, twice with groups. The model is left alone: no weight
    of it is written, and the random numbers of a pass are the same in each.

    Args:
        model: A model in PyTorch or JAX, or in Keras on one of them, with values, in the mode (`eval`, mostly) that it
            is to be judged in.
        batch: What the model takes, as `measure` takes it; where `attention_mask` is 0 nothing is compared.
        params: What a linen module or a function is applied to.
        bits: 2 to 16 each.
        group: Entries of a row that share a scale, tried beside whole rows; the advice is about these. None: rows
            alone.
        tolerance: Divergence up to which a rounding is taken. Unit: nats.

    Returns:
        Every effect, the fewest bits that each role bears, and the advice.

    Raises:
        BackendError: The framework has no such measurement yet.
        InputError: The model refuses the batch or returns no logits; one copy of the table, or one operation, serves
            both roles at once.
        RangeError: Bits, group or tolerance is out of range.

    Example:
        >>> import torch, tiebeam
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> _ = torch.manual_seed(0)
        >>> model = MiniGPT(MiniGPTConfig.from_scheme("C", vocab=500, width=64)).eval()
        >>> found = tiebeam.sensitivity(model, torch.arange(32).view(2, 16))
        >>> found.advice, found.effect("readout", 8, 32).top1
        ('shared', 1.0)
        >>> found.effect("readout", 4, 32).kl > found.effect("readout", 8, 32).kl
        True
    """
    backend, args, kwargs, request = prepared(Quantisable, model, batch, params, None)
    try:
        table = backend.quantisable(args, kwargs)
    except RefusedError as refused:
        raise refused_inputs(backend, args, kwargs, refused) from (refused.__cause__ or refused)
    mask = None if request.mask is None else np.asarray(request.mask, dtype=bool).reshape(-1)
    return measure_sensitivity(backend.name, table, bits=bits, group=group, tolerance=tolerance, mask=mask)
