"""What may be done to uncomputed logits without their numbers, and their cross entropy."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from tiebeam.backends.torch.readout.deferred import Deferred

Step = Callable[[Tensor], Tensor]
MASKS = (torch.bool, torch.uint8)


def _times(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    [factor, *rest] = args or (None,)
    if rest or kwargs or isinstance(factor, bool) or not isinstance(factor, Real):
        return None
    return _multiplied(of, float(factor), lambda t: func(t, factor))


def _divided(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    [divisor, *rest] = args or (None,)
    if rest or kwargs or isinstance(divisor, bool) or not isinstance(divisor, Real) or not divisor:
        return None
    return _multiplied(of, 1.0 / float(divisor), lambda t: func(t, divisor))


def _multiplied(of: Deferred, factor: float, step: Step) -> Deferred | None:
    recipe = of.recipe.times(factor)
    finite = math.isfinite(recipe.inner) and math.isfinite(recipe.outer or 0.0)
    return of.after(recipe, step) if finite else None


def _added(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    """A bias that the model adds itself, as Bart's and Marian's `final_logits_bias`."""
    [bias, *rest] = args or (None,)
    vocab, inner = of.shape[-1], of.recipe.inner
    if rest or kwargs or not isinstance(bias, Tensor) or not bias.is_floating_point() or of.recipe.outer is not None:
        return None
    if vocab == 1 or bias.shape[-1:] != (vocab,) or bias.numel() != vocab or bias.ndim > of.ndim or not inner:
        return None
    if bias.requires_grad and torch.is_grad_enabled() and not of.recipe.recorded:
        return None
    known, kept = of.recipe.bias, bias.clone()  # as it is now: who owns it may write to it
    flat = kept.flatten() / inner
    summed = flat if known is None else known + flat
    recipe = replace(of.recipe, bias=summed, leaves=(*of.recipe.leaves, bias))
    return of.after(recipe, lambda t: func(t, kept), torch.promote_types(of.dtype, bias.dtype))


def _capped(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    if args or kwargs or of.recipe.outer is not None:
        return None
    return of.after(replace(of.recipe, outer=1.0), func)


def _cast(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    named = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}
    if kwargs or len(args) > 1:
        return None
    dtype = named.get(func.__name__, args[0] if args else None)
    if dtype == of.dtype or (isinstance(dtype, torch.device) and dtype == of.device):
        return of
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return None
    return of.after(of.recipe, lambda t: t.to(dtype), dtype)


def _contiguous(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    if args or kwargs:
        return None
    return of if of.lie.is_contiguous() else of.after(of.recipe, func, lie=of.lie.contiguous())


def _cloned(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    """DDP clones what a model returns where it looks for parameters without a gradient."""
    if args or kwargs:
        return None
    made = of.after(of.recipe, func)
    of.family.leave(made)
    return made


def _indexed(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    """Where tokens are picked and every one of their logits is kept."""
    [given] = args
    index = tuple(map(_kept, given if isinstance(given, tuple) else (given,)))
    if any(i is None for i in index):
        return None
    picked = [i for i in index if isinstance(i, Tensor)]
    taken = [i.ndim if isinstance(i, Tensor) and i.dtype in MASKS else 1 for i in index if i is not Ellipsis]
    dots = [i for i in index if i is Ellipsis]
    to_the_end = (bool(dots) and index[-1] is not Ellipsis) or sum(taken) >= of.ndim
    if to_the_end and not (isinstance(index[-1], slice) and index[-1] == slice(None)):
        return None
    hidden = of.recipe.hidden[index]
    lie = torch.empty((*hidden.shape[:-1], of.shape[-1]), device="meta") if picked else of.lie[index]
    return of.after(replace(of.recipe, hidden=hidden), lambda t: t[index], lie=lie, shares=not picked)


def _kept(index: Any) -> Any:
    """A part of an index as it is now, for a tensor may be written to; None for what is not known to take one axis."""
    if isinstance(index, slice):
        ends = (index.start, index.stop, index.step)
        return slice(*(None if end is None else operator.index(end) for end in ends))
    if isinstance(index, Tensor):
        return index.clone()
    return index if index is Ellipsis or (isinstance(index, int) and not isinstance(index, bool)) else None


def _reshaped(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    shape = tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else tuple(args)
    if kwargs or not shape or not all(isinstance(n, int) for n in shape):
        return None
    return _laid(of, func(of.lie, shape), lambda t: t.reshape(shape))


def _flattened(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    return _laid(of, func(of.lie, *args, **kwargs), lambda t: func(t, *args, **kwargs))


def _laid(of: Deferred, lie: Tensor, step: Step) -> Deferred | None:
    """Where tokens are laid out in another shape, and the last axis is still the vocabulary."""
    hidden = of.recipe.hidden
    if lie is of.lie:
        return of
    if not lie.ndim or lie.shape[-1] != of.shape[-1]:
        return None
    recipe = replace(of.recipe, hidden=hidden.reshape(*lie.shape[:-1], hidden.shape[-1]))
    return of.after(recipe, step, lie=lie, shares=True)


def _cross_entropy(of: Deferred, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    given = dict(zip(("target", "weight", "size_average", "ignore_index", "reduce", "reduction"), args, strict=False))
    given |= kwargs
    target, outdated = given.pop("target", None), (given.pop("size_average", None), given.pop("reduce", None))
    if outdated != (None, None) or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    if tuple(target.shape) != tuple(of.shape[:-1]) or of.ndim > 2 or not target.numel():
        return None  # of more than two axes the second, not the last, is the vocabulary; nothing has a sum of 0
    loss = of.recipe.loss(target, **given)
    for one in (of, *of.sources()):
        one.taken |= loss is not None
    return loss


Handler = Callable[["Deferred", Any, Sequence[Any], dict[str, Any]], Any]
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), _times),
    **dict.fromkeys(("div", "__truediv__", "true_divide", "divide"), _divided),
    **dict.fromkeys(("add", "__add__"), _added),
    "tanh": _capped,
    **dict.fromkeys(("float", "double", "half", "bfloat16", "to", "type"), _cast),
    "contiguous": _contiguous,
    "clone": _cloned,
    "__getitem__": _indexed,
    **dict.fromkeys(("view", "reshape"), _reshaped),
    "flatten": _flattened,
    "cross_entropy": _cross_entropy,
}
"""Operations, by name, that leave logits deferred or take their loss."""
