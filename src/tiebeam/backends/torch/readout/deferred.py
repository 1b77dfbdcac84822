"""Logits that are not computed unless somebody looks: a tensor that remembers how it would be.

A model goes on to scale, cap, cast and reshape them, and takes their cross entropy. All of that is known in advance of
the numbers, so the loss needs none of them. Whatever else is asked of them computes them as the model would have.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tiebeam.backends.torch.readout.nodes import Held, Origin, Revealed, gone_past
from tiebeam.backends.torch.readout.steps import HANDLERS, Step
from tiebeam.blocks.readout_loss.torch.call import readout_loss
from tiebeam.errors import NotFiniteError

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
        """The cross entropy; None where the soft cap is not the one that was traced, or a number is none."""
        cap, known = None if self.outer is None else abs(self.outer), self.soft_cap
        if (cap is None) != (known is None) or (cap and known and abs(cap - known) > CAP_TOLERANCE * known):
            return None
        self.origin.check()
        factor = self.inner * (1.0 if self.outer is None else self.outer)
        with torch.set_grad_enabled(self.recorded and torch.is_grad_enabled()), self.origin.precision():
            bias = self.bias if self.bias is None or factor == 1.0 else self.bias * factor
            table = self.origin.table
            try:
                loss: Tensor = readout_loss(
                    self.hidden, table, targets, factor=factor, soft_cap=cap, bias=bias, **options
                )
            except NotFiniteError:
                return None  # a loss that is none either, which gradient scalers and trainers look for
        self.origin.tally.losses += 1
        return loss


@dataclass
class Family:
    """Logits of one call and all that was made of them, which may share memory once computed.

    Attributes:
        exposed: Whether their memory is in others' hands, who may write to it: then they are what is there.
        watched: Whether somebody looks for the gradient of one of them: then it goes by way of their numbers.
    """

    exposed: bool = False
    watched: bool = False
    members: list[weakref.ref[Deferred]] = field(default_factory=list)

    def expose(self, why: str) -> None:
        """Compute all that are still in use, so that what is written finds its way as it would have."""
        if not self.exposed:
            self.exposed = True
            for member in [of() for of in self.members]:
                if member is not None:
                    member.logits(why)

    def watch(self) -> None:
        """Let gradients go by way of these from now on."""
        for family in (self, *(member.family for of in self.members if (member := of()) is not None)):
            family.watched = True

    def leave(self, made: Deferred) -> None:
        """Let what was made have a memory of its own; it is still computed before what it was made of is written to."""
        made.family = Family(members=[weakref.ref(made)])


class Deferred(Tensor):
    """Logits of some shape and dtype without their numbers."""

    recipe: Recipe
    family: Family
    lie: Tensor
    taken: bool  # a loss, without them
    _found: Tensor | None
    _watches: list[Callable[[Tensor], None]]
    _made_of: tuple[Deferred, Step, bool] | None

    @staticmethod
    def __new__(
        cls,
        recipe: Recipe,
        dtype: torch.dtype,
        lie: Tensor | None = None,
        made_of: tuple[Deferred, Step, bool] | None = None,
    ) -> Deferred:
        """Return the logits of a recipe.

        Args:
            lie: Their shape and strides, as a tensor without numbers.
            made_of: What they were made of, how, and whether that shares memory.
        """
        device = recipe.hidden.device
        if lie is None:
            lie = torch.empty((*recipe.hidden.shape[:-1], recipe.origin.table.shape[0]), device="meta")
        shape, strides = lie.shape, lie.stride()

        def make() -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, shape, strides, dtype=dtype, device=device)

        fresh = partial(_fresh, recipe.origin, made_of)
        place: Any = Held.apply
        made: Deferred = place(make, recipe.origin, fresh, *recipe.leaves) if recipe.recorded else make()
        made.recipe, made.lie, made._found, made._made_of, made.taken, made._watches = (
            recipe,
            lie,
            None,
            made_of,
            False,
            [],
        )
        made.family = Family() if made_of is None else made_of[0].family
        made.family.members.append(weakref.ref(made))
        return made

    def after(
        self,
        recipe: Recipe,
        step: Step,
        dtype: torch.dtype | None = None,
        *,
        lie: Tensor | None = None,
        shares: bool = False,
    ) -> Deferred:
        """What a step makes of these; it lies as an operation on each element leaves it, unless that is said."""
        recipe = replace(recipe, recorded=recipe.recorded and torch.is_grad_enabled())
        lie = torch.empty_like(self.lie) if lie is None else lie
        return Deferred(recipe, dtype or self.dtype, lie, (self, step, shares))

    def sources(self) -> Iterator[Deferred]:
        """What these were made of, and that of."""
        made_of = self._made_of
        while made_of is not None:
            yield made_of[0]
            made_of = made_of[0]._made_of

    @property
    def certain(self) -> bool:
        """Whether they are what the recipe says, and their gradient concerns nobody."""
        foreign = self.requires_grad and not self.recipe.recorded  # of a function that ran without recording
        return not (self.family.exposed or self.family.watched or foreign)

    def logits(self, why: str) -> Tensor:
        """Compute them: what the model would have had."""
        if self._found is None:
            recorded = self.recipe.recorded
            foreign = self.requires_grad and not recorded
            with self.recipe.origin.as_it_was(recorded or foreign):
                find = partial(self._value, why)
                self._found = Revealed.apply(self, find) if foreign else find()  # type: ignore[no-untyped-call]
            for watch in self._watches:
                watch(self._found)
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
        return step(source.logits(why) if shares or self.recipe.recorded else source._value(why))

    def watch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call one of `WATCHES` here and where the numbers are, for a gradient may come by either way.

        Raises:
            GradientError: It went past them already; a wrapper of torch's own asks when it comes, not what it is.
        """
        hook = next(iter((*args, *kwargs.values())), None)
        while isinstance(hook, partial):
            hook = hook.func
        if self.taken and not str(getattr(hook, "__module__", "")).startswith("torch."):
            raise gone_past()
        with torch._C.DisableTorchFunctionSubclass():
            handle = func(self, *args, **kwargs)
        watch = partial(_watch, func, args, kwargs, handle)
        self.family.watch()
        self._watches.append(watch)
        if self._found is not None:
            watch(self._found)
        return handle

    def gradient(self) -> Tensor | None:
        """What `retain_grad` kept."""
        with torch._C.DisableTorchFunctionSubclass():
            here: Tensor | None = GRADIENT(self)
        there = self._found.grad if self._found is not None and self._watches else None
        return there if here is None else here if there is None else here + there

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer what needs no numbers; compute them for the rest."""
        name, kwargs = getattr(func, "__name__", str(func)), dict(kwargs or {})
        if name in WATCHES:
            return args[0].watch(func, args[1:], kwargs)
        if func == GRADIENT:
            return args[0].gradient()
        if name in METADATA or func in GETTERS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.autograd.grad and any(one.taken for one in _all(Deferred, args[1])):
            raise gone_past()
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
    if name in HANDS_OUT or "out" in kwargs or kwargs.get("inplace") or _writes(name):
        for one in given:
            one.family.expose(name)
    result = func(*(_seen(a, name) for a in args), **_seen(kwargs, name))
    memory = {t.untyped_storage().data_ptr() for t in _all(Tensor, result) if type(t) is Tensor}
    for one in given:
        if one._found is not None and one._found.untyped_storage().data_ptr() in memory:
            one.family.expose(name)
    return result


def _watch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], handle: Any, found: Tensor) -> None:
    """Call one of `WATCHES` with computed logits; the handle that was given out removes the hook there too."""
    if handle is None:
        func(found, *args, **kwargs)
    elif found.grad_fn is not None and handle.id in (handle.hooks_dict_ref() or ()):  # torch crashes if none has asked
        there = func(found, *args, **kwargs)
        hooks = there.hooks_dict_ref()
        hooks[handle.id] = hooks.pop(there.id)
        handle.extra_dict_ref = (*handle.extra_dict_ref, weakref.ref(hooks))


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


METADATA = frozenset(
    "is_contiguous size dim stride numel is_floating_point is_complex __len__ get_device ndimension".split()
)
GETTERS = frozenset(
    getattr(Tensor, name).__get__
    for name in "shape dtype device ndim requires_grad layout is_meta is_cuda grad_fn is_leaf grad _base".split()
)
GRADIENT = getattr(Tensor, "grad").__get__  # noqa: B009 # which mypy takes for a tensor
WATCHES = frozenset("register_hook retain_grad".split())
HANDS_OUT = frozenset(
    "__setitem__ numpy __array__ __dlpack__ __reduce_ex__ data_ptr untyped_storage storage _typed_storage".split()
)
"""Writes, or lets others write without being heard."""
