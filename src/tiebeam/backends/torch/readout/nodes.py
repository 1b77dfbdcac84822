"""What logits that are not computed come from, and their place in autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebeam.errors import GradientError, InputError


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
class Origin:
    """One call of the layer that reads out: what it was given, and under which conditions.

    Attributes:
        forward: The layer's own, or what somebody else had put in its place.
        recorded: Whether gradients were.
        autocast: Whether it was on, and its dtype.
        versions: How often each tensor had been written to, and its memory.
    """

    module: nn.Linear
    forward: Callable[[Tensor], Tensor]
    hidden: Tensor
    table: Tensor
    bias: Tensor | None
    tally: Tally
    recorded: bool
    autocast: tuple[bool, torch.dtype]
    versions: tuple[tuple[int, int], ...] = field(default=())

    @classmethod
    def of(cls, module: nn.Linear, forward: Callable[[Tensor], Tensor], hidden: Tensor, tally: Tally) -> Origin:
        """Return what a call is given, as things stand."""
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        given = (hidden, module.weight, module.bias)
        made = cls(module, forward, *given, tally, torch.is_grad_enabled(), autocast)
        object.__setattr__(made, "versions", made._versions())
        return made

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """What has a gradient, or may have."""
        return tuple(t for t in (self.hidden, self.table, self.bias) if t is not None)

    @property
    def dtype(self) -> torch.dtype:
        """Of the logits; float64 is left alone by autocast."""
        on, dtype = self.autocast
        return dtype if on and self.hidden.dtype != torch.float64 else self.hidden.dtype

    def check(self) -> None:
        """Raise where what the logits are computed from is no longer there.

        Raises:
            InputError: It was written to since, or its memory was given back.
        """
        changed = self._versions() != self.versions
        if changed or any(not t.untyped_storage().nbytes() and t.numel() and not t.is_meta for t in self.leaves):
            raise InputError(
                "logits that use_readout_loss had left uncomputed were looked at too late",
                got="weights or a hidden state that have been written to since"
                if changed
                else "weights that were resharded since",
                expected="what the model read when it ran",
                hint="look at the logits before optimizer.step(), or take the loss within the model's forward (labels=)"
                if changed
                else "take the loss within the model's forward (labels=), or fully_shard(..., "
                "reshard_after_forward=False)",
            )

    @property
    def own(self) -> bool:
        """Whether `forward` is the layer's own, so that it can be done with tensors that the layer no longer has."""
        return bool(self.forward == nn.Linear.forward.__get__(self.module))

    def product(self, leaves: Sequence[Tensor] | None = None) -> Tensor:
        """The logits as the layer would have returned them; under `as_it_was`."""
        self.check()
        hidden, *weights = self.leaves if leaves is None else leaves
        return F.linear(hidden, *weights) if self.own else self.forward(hidden)

    def apart(self) -> list[Tensor]:
        """The leaves without what they come from: the hidden state comes from a tied table too."""
        hidden, *weights = self.leaves
        found = [hidden, *weights] if self.own else [hidden]
        found = [t.detach().requires_grad_(t.requires_grad) for t in found]
        return found if self.own else [*found, *weights]

    @contextmanager
    def as_it_was(self, recorded: bool) -> Iterator[None]:
        """The conditions of the call; gradients as said."""
        with torch.inference_mode(False), torch.set_grad_enabled(recorded), self.precision():
            yield

    def precision(self) -> torch.autocast:
        """Autocast as it was: a layer that a model keeps in float32 is, and its loss with it."""
        on, dtype = self.autocast
        return torch.autocast(self.hidden.device.type, dtype, enabled=on)

    def _versions(self) -> tuple[tuple[int, int], ...]:
        """How often each was written to, and which memory it has: `t.data = ...` gives it another."""
        return tuple((0 if t.is_inference() else t._version, t.untyped_storage()._cdata) for t in self.leaves)


class Held(torch.autograd.Function):
    """Gives uncomputed logits a place in autograd: whoever starts or ends a backward pass there finds the way."""

    @staticmethod
    def forward(
        ctx: Any,
        make: Callable[[], Tensor],
        origin: Origin,
        fresh: Callable[[Sequence[Tensor]], Tensor],
        *leaves: Tensor,
    ) -> Tensor:
        """Return what `make` does; `fresh` computes it from the leaves of its origin, the first of all leaves."""
        ctx.origin, ctx.fresh, ctx.leaves = origin, fresh, leaves
        return make()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        apart = ctx.origin.apart()
        leaves = [*apart, *ctx.leaves[len(apart) :]]
        with ctx.origin.as_it_was(True):
            found = torch.autograd.grad(
                ctx.fresh(apart), [t for t in leaves if t.requires_grad], grad, allow_unused=True
            )
        by_place = iter(found)
        return None, None, None, *(next(by_place) if t.requires_grad else None for t in leaves)


class Revealed(torch.autograd.Function):
    """Computed logits whose gradient goes by way of uncomputed ones, which a function without recording returned."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, found: Callable[[], Tensor]) -> Tensor:
        """Return what `found` does, which nothing else has: so it may be written to."""
        return found()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


def gone_past() -> GradientError:
    """The error of a gradient that does not come by."""
    return GradientError(
        "the gradient of logits whose loss was computed without them (use_readout_loss)",
        got="torch.autograd.grad(..., logits), retain_grad() or a hook, after their loss was taken",
        expected="logits of which it is known before that their gradient is wanted",
        hint="logits.retain_grad(), or the hook, before the loss is taken: it then goes by way of them",
    )
