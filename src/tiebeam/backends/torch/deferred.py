"""Logits that are not computed unless somebody looks: a tensor that remembers how it would be.

A model goes on to scale, cap, cast and reshape them, and takes their cross entropy. All of that is known in advance of
the numbers, so the loss needs none of them. Whatever else is asked of them computes them as the model would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from tiebeam.blocks.readout_loss.torch.call import readout_loss

Step = Callable[[Tensor], Tensor]
CAP_TOLERANCE = 1e-4  # between a cap that was traced and one that is seen at work


@dataclass
class Tally:
    """What came of deferred logits.

    Attributes:
        losses: Losses that were computed without them.
        logits: Times that they were computed after all.
        why: The operations that looked at them.
    """

    losses: int = 0
    logits: int = 0
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """What the logits are: `outer * tanh(inner * (hidden @ table.T + bias))`, or without the tanh.

    Attributes:
        hidden: (..., width), what is read out, in the shape that the logits have by now.
        product: Computes the readout as the model does.
        steps: What the model did to the logits since, to be done again where they are computed.
        inner, outer: Constants; `outer` is None before a tanh.
        soft_cap: Of the report.
    """

    hidden: Tensor
    table: Tensor
    bias: Tensor | None
    soft_cap: float | None
    tally: Tally
    product: Callable[[], Tensor]
    steps: tuple[Step, ...] = ()
    inner: float = 1.0
    outer: float | None = None

    def times(self, factor: float) -> Recipe:
        """The same, multiplied."""
        if self.outer is None:
            return replace(self, inner=self.inner * factor)
        return replace(self, outer=self.outer * factor)

    def loss(self, targets: Tensor, **options: Any) -> Tensor | None:
        """The cross entropy, or None where the soft cap is not the one that was traced."""
        cap, known = None if self.outer is None else abs(self.outer), self.soft_cap
        if (cap is None) != (known is None) or (cap and known and abs(cap - known) > CAP_TOLERANCE * known):
            return None
        factor = self.inner * (1.0 if self.outer is None else self.outer)
        bias = self.bias if self.bias is None or factor == 1.0 else self.bias * factor
        self.tally.losses += 1
        loss: Tensor = readout_loss(self.hidden, self.table, targets, factor=factor, soft_cap=cap, bias=bias, **options)
        return loss


class Deferred(Tensor):
    """Logits of some shape and dtype without their numbers."""

    recipe: Recipe
    _found: Tensor | None

    @staticmethod
    def __new__(cls, recipe: Recipe, dtype: torch.dtype) -> Deferred:
        """Return the logits of a recipe."""
        shape = (*recipe.hidden.shape[:-1], recipe.table.shape[0])
        wants = torch.is_grad_enabled() and (recipe.hidden.requires_grad or recipe.table.requires_grad)
        made: Deferred = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=recipe.hidden.device, requires_grad=wants
        )
        made.recipe, made._found = recipe, None
        return made

    def logits(self, why: str) -> Tensor:
        """Compute them: what the model would have had."""
        if self._found is None:
            tally = self.recipe.tally
            tally.logits += 1
            tally.why = tuple(dict.fromkeys((*tally.why, why)))
            found = self.recipe.product()
            for step in self.recipe.steps:
                found = step(found)
            self._found = found
        return self._found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer what needs no numbers; compute them for the rest."""
        name, kwargs = getattr(func, "__name__", str(func)), dict(kwargs or {})
        if name in METADATA or func in GETTERS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else kwargs.pop("input", None)
        others = args[1:]
        if name in HANDLERS and isinstance(first, Deferred) and not _deferred((others, kwargs)):
            found = HANDLERS[name](first, func, others, kwargs)
            if found is not None:
                return found
        return func(*(_seen(a, name) for a in (first, *others)), **_seen(kwargs, name))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch's own annotation lacks the function
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Whoever comes this way has not asked first."""
        return func(*_seen(args, str(func)), **_seen(kwargs or {}, str(func)))


def _deferred(given: Any) -> bool:
    if isinstance(given, Mapping):
        given = tuple(given.values())
    return any(map(_deferred, given)) if isinstance(given, (list, tuple)) else isinstance(given, Deferred)


def _seen(given: Any, why: str) -> Any:
    """Arguments with logits in place of deferred ones."""
    if isinstance(given, Deferred):
        return given.logits(why)
    if not _deferred(given):
        return given
    if isinstance(given, Mapping):
        return {name: _seen(value, why) for name, value in given.items()}
    return type(given)([_seen(a, why) for a in given])


METADATA = frozenset("size dim stride numel is_floating_point is_complex __len__ get_device ndimension".split())
GETTERS = frozenset(
    getattr(Tensor, name).__get__ for name in "shape dtype device ndim requires_grad layout is_meta is_cuda".split()
)


# ---- what is answered without numbers: each returns None where it is not


def _after(of: Deferred, recipe: Recipe, step: Step, dtype: torch.dtype | None = None) -> Deferred:
    return Deferred(replace(recipe, steps=(*recipe.steps, step)), dtype or of.dtype)


def _times(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    [factor, *rest] = args or (None,)
    if rest or kwargs or isinstance(factor, bool) or not isinstance(factor, Real):
        return None
    return _after(of, of.recipe.times(float(factor)), lambda t: func(t, factor))


def _divided(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    [divisor, *rest] = args or (None,)
    if rest or kwargs or isinstance(divisor, bool) or not isinstance(divisor, Real) or not divisor:
        return None
    return _after(of, of.recipe.times(1.0 / float(divisor)), lambda t: func(t, divisor))


def _added(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    """A bias that the model adds itself, as Bart's and Marian's `final_logits_bias`."""
    [bias, *rest] = args or (None,)
    vocab, inner = of.shape[-1], of.recipe.inner
    if rest or kwargs or not isinstance(bias, Tensor) or not bias.is_floating_point() or of.recipe.outer is not None:
        return None
    if vocab == 1 or bias.shape[-1:] != (vocab,) or bias.numel() != vocab or bias.ndim > of.ndim or not inner:
        return None
    known, flat = of.recipe.bias, bias.flatten() / inner
    recipe = replace(of.recipe, bias=flat if known is None else known + flat)
    return _after(of, recipe, lambda t: func(t, bias), torch.promote_types(of.dtype, bias.dtype))


def _capped(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    if args or kwargs or of.recipe.outer is not None:
        return None
    return _after(of, replace(of.recipe, outer=1.0), func)


def _cast(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    named = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}
    if kwargs or len(args) > 1:
        return None
    dtype = named.get(func.__name__, args[0] if args else None)
    if isinstance(dtype, torch.device) and dtype == of.device:
        return of
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        return None
    return _after(of, of.recipe, lambda t: t.to(dtype), dtype)


def _same(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    return None if args or kwargs else of


def _indexed(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    """Where tokens are picked and every one of their logits is kept."""
    [index] = args
    index = index if isinstance(index, tuple) else (index,)
    if any(i is None or isinstance(i, (bool, list)) for i in index):
        return None
    taken = [i.ndim if isinstance(i, Tensor) and i.dtype == torch.bool else 1 for i in index if i is not Ellipsis]
    dots = [i for i in index if i is Ellipsis]
    to_the_end = (bool(dots) and index[-1] is not Ellipsis) or sum(taken) >= of.ndim
    if to_the_end and not (isinstance(index[-1], slice) and index[-1] == slice(None)):
        return None
    recipe = replace(of.recipe, hidden=of.recipe.hidden[index])
    return _after(of, recipe, lambda t: t[index])


def _reshaped(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    shape = tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else tuple(args)
    vocab = of.recipe.table.shape[0]
    if kwargs or not shape or not all(isinstance(n, int) for n in shape):
        return None
    if shape[-1] == -1 and -1 not in shape[:-1]:
        rest = 1
        for n in shape[:-1]:
            rest *= n
        shape = (*shape[:-1], of.numel() // max(rest, 1))
    if shape[-1] != vocab:
        return None
    hidden = of.recipe.hidden
    recipe = replace(of.recipe, hidden=hidden.reshape(*shape[:-1], hidden.shape[-1]))
    return _after(of, recipe, lambda t: t.reshape(shape))


def _flattened(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    start, end = (*args, 0, -1)[:2] if len(args) != 1 else (args[0], -1)
    start, end = kwargs.get("start_dim", start), kwargs.get("end_dim", end)
    if of.ndim < 2 or end % of.ndim == of.ndim - 1:
        return None
    recipe = replace(of.recipe, hidden=of.recipe.hidden.flatten(start, end))
    return _after(of, recipe, lambda t: t.flatten(start, end))


def _cross_entropy(of: Deferred, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    given = dict(zip(("target", "weight", "size_average", "ignore_index", "reduce", "reduction"), args, strict=False))
    given |= kwargs
    target, outdated = given.pop("target", None), (given.pop("size_average", None), given.pop("reduce", None))
    if outdated != (None, None) or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    if tuple(target.shape) != tuple(of.shape[:-1]) or of.ndim > 2:
        return None  # of more than two axes the second, not the last, is the vocabulary
    return of.recipe.loss(target, **given)


Handler = Callable[[Deferred, Any, Sequence[Any], dict[str, Any]], Any]
HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "multiply"), _times),
    **dict.fromkeys(("div", "__truediv__", "true_divide", "divide"), _divided),
    **dict.fromkeys(("add", "__add__"), _added),
    "tanh": _capped,
    **dict.fromkeys(("float", "double", "half", "bfloat16", "to", "type"), _cast),
    "contiguous": _same,
    "__getitem__": _indexed,
    **dict.fromkeys(("view", "reshape"), _reshaped),
    "flatten": _flattened,
    "cross_entropy": _cross_entropy,
}
"""Operations, by name, that leave logits deferred or take their loss."""
