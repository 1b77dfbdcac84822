"""Logits that are not computed unless somebody looks: a tensor that remembers how it would be.

A model goes on to scale, cap, cast and reshape them, and takes their cross entropy. All of that is known in advance of
the numbers, so the loss needs none of them. Whatever else is asked of them computes them as the model would have.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from tiebeam.backends.torch.readout.nodes import Held, Origin, Revealed
from tiebeam.blocks.readout_loss.torch.call import readout_loss

Step = Callable[[Tensor], Tensor]
CAP_TOLERANCE = 1e-4  # between a cap that was traced and one that is seen at work


@dataclass(frozen=True)
class Recipe:
    """What the logits are: `outer * tanh(inner * (hidden @ table.T + bias))`, or without the tanh.

    Attributes:
        origin: The call that they are of.
        hidden: (..., width), what is read out, in the shape that the logits have by now.
        bias: (vocab,), or None.
        soft_cap: Of the report.
        recorded: Whether gradients are.
        leaves: What they are computed from.
        inner, outer: Constants; `outer` is None before a tanh.
    """

    origin: Origin
    hidden: Tensor
    bias: Tensor | None
    soft_cap: float | None
    recorded: bool
    leaves: tuple[Tensor, ...]
    inner: float = 1.0
    outer: float | None = None

    @classmethod
    def of(cls, origin: Origin, soft_cap: float | None) -> Recipe:
        """Of logits as the layer returns them."""
        return cls(origin, origin.hidden, origin.bias, soft_cap, origin.recorded, origin.leaves)

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
        self.origin.check()
        factor = self.inner * (1.0 if self.outer is None else self.outer)
        with torch.set_grad_enabled(self.recorded and torch.is_grad_enabled()):
            bias = self.bias if self.bias is None or factor == 1.0 else self.bias * factor
            table = self.origin.table
            loss: Tensor = readout_loss(self.hidden, table, targets, factor=factor, soft_cap=cap, bias=bias, **options)
        self.origin.tally.losses += 1
        return loss


@dataclass
class Family:
    """Logits of one call and all that was made of them, which may share memory once computed.

    Attributes:
        exposed: Whether their memory is in others' hands, who may write to it: then they are what is there.
    """

    exposed: bool = False
    members: list[weakref.ref[Deferred]] = field(default_factory=list)

    def expose(self, why: str) -> None:
        """Compute all that are still in use, so that what is written finds its way as it would have."""
        if not self.exposed:
            self.exposed = True
            for member in [of() for of in self.members]:
                if member is not None:
                    member.logits(why)


class Deferred(Tensor):
    """Logits of some shape and dtype without their numbers."""

    recipe: Recipe
    family: Family
    _found: Tensor | None
    _watched: bool
    _made_of: tuple[Deferred, Step, bool] | None

    @staticmethod
    def __new__(
        cls, recipe: Recipe, dtype: torch.dtype, made_of: tuple[Deferred, Step, bool] | None = None
    ) -> Deferred:
        """Return the logits of a recipe.

        Args:
            made_of: What they were made of, how, and whether that shares memory.
        """
        shape, device = (*recipe.hidden.shape[:-1], recipe.origin.table.shape[0]), recipe.hidden.device

        def make() -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

        fresh = partial(_fresh, recipe.origin, made_of)
        place: Any = Held.apply
        made: Deferred = place(make, recipe.origin, fresh, *recipe.leaves) if recipe.recorded else make()
        made.recipe, made._found, made._watched, made._made_of = recipe, None, False, made_of
        made.family = Family() if made_of is None else made_of[0].family
        made.family.members.append(weakref.ref(made))
        return made

    @property
    def certain(self) -> bool:
        """Whether they are what the recipe says, and their gradient concerns nobody."""
        foreign = self.requires_grad and not self.recipe.recorded  # of a function that ran without recording
        return not (self.family.exposed or self._watched or foreign)

    def logits(self, why: str) -> Tensor:
        """Compute them: what the model would have had."""
        if self._found is None:
            recorded = self.recipe.recorded
            foreign = self.requires_grad and (self._watched or not recorded)
            with self.recipe.origin.as_it_was(recorded and not foreign):
                self._found = self._value(why)
            if foreign:
                with torch.inference_mode(False), torch.enable_grad():
                    self._found = Revealed.apply(self, self._found)  # type: ignore[no-untyped-call]
        return self._found

    def _value(self, why: str) -> Tensor:
        if self._found is not None:
            return self._found
        if self._made_of is None:
            tally = self.recipe.origin.tally
            tally.logits += 1
            tally.why = tuple(dict.fromkeys((*tally.why, why)))
            return self.recipe.origin.product()
        source, step, shares = self._made_of
        return step(source.logits(why) if shares else source._value(why))

    def watch(self) -> None:
        """Let gradients go by way of these from now on."""
        self._watched = True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer what needs no numbers; compute them for the rest."""
        name, kwargs = getattr(func, "__name__", str(func)), dict(kwargs or {})
        if name in METADATA or name in WATCHES or func in GETTERS:
            if name in WATCHES and args[0]._found is None:
                args[0].watch()
            if name not in WATCHES or args[0]._watched:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
        first = args[0] if args else kwargs.pop("input", None)
        others = args[1:]
        if name in HANDLERS and isinstance(first, Deferred) and first.certain and not _deferred((others, kwargs)):
            found = HANDLERS[name](first, func, others, kwargs)
            if found is not None:
                return found
        return _computed(func, name, (first, *others), kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch's own annotation lacks the function
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Whoever comes this way has not asked first."""
        return _computed(func, str(func), args, kwargs or {})


def _fresh(origin: Origin, made_of: tuple[Deferred, Step, bool] | None, leaves: Sequence[Tensor]) -> Tensor:
    """The logits computed anew, of other leaves of their origin."""
    if made_of is None:
        return origin.product(leaves)
    source, step, _ = made_of
    return step(_fresh(origin, source._made_of, leaves))


def _computed(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function with logits in place of deferred ones, and note where their memory goes."""
    given = list(_all(Deferred, (args, kwargs)))
    if name == "__setitem__" or "out" in kwargs or _writes(name):
        for one in given:
            one.family.expose(name)
    result = func(*(_seen(a, name) for a in args), **_seen(kwargs, name))
    memory = {t.untyped_storage().data_ptr() for t in _all(Tensor, result) if type(t) is Tensor}
    for one in given:
        if one._found is not None and one._found.untyped_storage().data_ptr() in memory:
            one.family.expose(name)
    return result


def _writes(name: str) -> bool:
    """Whether an operation, `mul_` or `aten.mul_.Tensor`, writes to its first argument, as far as its name says."""
    last = name.removeprefix("aten.").split(".")[0]
    return last.endswith("_") and not last.endswith("__")


def _all(kind: type[Any], given: Any) -> Iterator[Any]:
    """Every one of a kind in arguments, or in what was returned."""
    if isinstance(given, kind):
        yield given
    elif isinstance(given, (Mapping, list, tuple)):
        for one in given.values() if isinstance(given, Mapping) else given:
            yield from _all(kind, one)


def _deferred(given: Any) -> bool:
    return any(True for _ in _all(Deferred, given))


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
    getattr(Tensor, name).__get__
    for name in "shape dtype device ndim requires_grad layout is_meta is_cuda grad_fn is_leaf grad _base".split()
)
WATCHES = frozenset("register_hook retain_grad".split())


# ---- what is answered without numbers: each returns None where it is not


def _after(
    of: Deferred, recipe: Recipe, step: Step, dtype: torch.dtype | None = None, *, shares: bool = False
) -> Deferred:
    recorded = recipe.recorded and torch.is_grad_enabled()
    return Deferred(replace(recipe, recorded=recorded), dtype or of.dtype, (of, step, shares))


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
    if bias.requires_grad and torch.is_grad_enabled() and not of.recipe.recorded:
        return None
    known, flat = of.recipe.bias, bias.flatten() / inner
    summed = flat if known is None else known + flat
    recipe = replace(of.recipe, bias=summed, leaves=(*of.recipe.leaves, bias))
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
    return _after(of, recipe, lambda t: t[index], shares=True)


def _reshaped(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    shape = tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else tuple(args)
    vocab = of.shape[-1]
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
    return _after(of, recipe, lambda t: t.reshape(shape), shares=True)


def _flattened(of: Deferred, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Deferred | None:
    start, end = (*args, 0, -1)[:2] if len(args) != 1 else (args[0], -1)
    start, end = kwargs.get("start_dim", start), kwargs.get("end_dim", end)
    if of.ndim < 2 or end % of.ndim == of.ndim - 1:
        return None
    recipe = replace(of.recipe, hidden=of.recipe.hidden.flatten(start, end))
    return _after(of, recipe, lambda t: t.flatten(start, end), shares=True)


def _cross_entropy(of: Deferred, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
    given = dict(zip(("target", "weight", "size_average", "ignore_index", "reduce", "reduction"), args, strict=False))
    given |= kwargs
    target, outdated = given.pop("target", None), (given.pop("size_average", None), given.pop("reduce", None))
    if outdated != (None, None) or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    if tuple(target.shape) != tuple(of.shape[:-1]) or of.ndim > 2 or not target.numel():
        return None  # of more than two axes the second, not the last, is the vocabulary; nothing has a sum of 0
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
