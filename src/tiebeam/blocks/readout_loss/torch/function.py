"""The operator's place in autograd: its gradients are there already, and are only scaled on the way back."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tiebeam.blocks.readout_loss.torch.operator import Numbers, Results, readout_loss_op
from tiebeam.errors import GradientError

TENSORS = 7  # inputs of `ReadoutLoss` that are tensors, or None; the first four have gradients


class ReadoutLoss(torch.autograd.Function):
    """hidden, table, bias, factor, targets, weight, inputs, numbers -> `Results`, of which the loss has a gradient."""

    @staticmethod
    def forward(
        hidden: Tensor,
        table: Tensor,
        bias: Tensor | None,
        factor: Tensor | None,
        targets: Tensor,
        weight: Tensor | None,
        inputs: Tensor | None,
        numbers: Numbers,
    ) -> tuple[Tensor, ...]:
        if not torch.compiler.is_compiling():
            _within_a_transform()
        if numbers.reduction == "none":  # what each loss will be multiplied by is not known yet
            numbers = numbers._replace(gradients=[False] * 4)
        return Results(*readout_loss_op(hidden, table, bias, factor, targets, weight, inputs, None, *numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        *tensors, numbers = inputs
        ctx.numbers = numbers
        ctx.dtypes = [None if t is None else t.dtype for t in tensors[:4]]
        kept = tensors if numbers.reduction == "none" else output[1:5]
        ctx.links = links = []
        if not torch.compiler.is_compiling():
            level = torch._C._functorch.maybe_current_level()
            links = [_link(t) for t in tensors[:4] if t is not None and (level is not None or t.requires_grad)]
            ctx.links = links if level is None else []
            links = [] if level is None else links  # a transform knows of what is saved alone
        ctx.save_for_backward(*kept, *links)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
        if grad is None:
            return (None,) * (TENSORS + 1)
        compiling = torch.compiler.is_compiling()
        if not compiling and torch._C._functorch.is_legacy_batchedtensor(grad):
            raise _no_transform("is_grads_batched, or a vectorized Jacobian")
        count, saved = TENSORS if ctx.numbers.reduction == "none" else 4, ctx.saved_tensors
        saved, links = saved[:count], (*saved[count:], *ctx.links)
        by = grad.detach()
        if torch.is_grad_enabled() and not compiling:  # (create_graph=True)
            _within_a_transform()
            found = _Once.apply(by, ctx.numbers, ctx.dtypes, *saved, grad, *links)  # type: ignore[no-untyped-call]
        else:
            found = _gradients(by, ctx.numbers, ctx.dtypes, saved, not compiling and _frees_what_it_saved())
        return (*found, *(None,) * (TENSORS - 3))


class _Once(torch.autograd.Function):
    """Finds gradients as `ReadoutLoss` does, where a second derivative may be asked for: there is none.

    Behind what was saved for them it takes what they depend on: autograd goes to the inputs that it was named alone,
    and without a way to them it would leave this out, and with it the curvature of the loss. It is a function of its
    own because what autograd records outside of a transform of `torch.func` is recorded there too.
    """

    @staticmethod
    def forward(by: Tensor, numbers: Numbers, dtypes: list[torch.dtype | None], *saved: Tensor) -> Any:
        return _gradients(by, numbers, dtypes, saved, mine=False)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: there is nothing to differentiate."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise no_second_derivative()

    @staticmethod
    def vmap(*_: Any) -> Any:
        raise _no_transform("vmap, or a Jacobian that maps over its backward pass")


def _link(t: Tensor) -> Tensor:
    """A tensor without elements whose gradient would go to `t`, and which does not keep its memory."""
    with torch.enable_grad():
        return (t.reshape(1) if t.ndim == 0 else t)[:0].clone()


def no_second_derivative() -> GradientError:
    """The error of a derivative of a derivative."""
    return GradientError(
        "the second derivative of readout_loss",
        got="a derivative of its gradients (create_graph=True, or one transform of torch.func inside another)",
        expected="one backward pass: the gradients came with the loss, and nothing is left to differentiate",
        hint="for a gradient penalty, a Hessian or a meta-gradient, take the cross entropy of the logits: "
        "F.cross_entropy(F.linear(hidden, table), targets)",
    )


def check_transforms() -> None:
    """Raise where a transform of `torch.func` other than grad is at work; torch would refuse it without a hint.

    Raises:
        GradientError: One is.
    """
    for level in torch._C._functorch.get_interpreter_stack() or ():
        name = level.key().name
        if name in ("Vmap", "Jvp"):
            raise _no_transform(name.lower())
    if torch.autograd.forward_ad._current_level >= 0:
        raise _no_transform("forward-mode differentiation")


def _no_transform(name: str) -> GradientError:
    return GradientError(
        "readout_loss within a transform that it does not know",
        got=name,
        expected="torch.func.grad or a backward pass, of a call that takes all tokens",
        hint='it takes tokens of any shape at once, and reduction="none" returns the loss of each; for what must be '
        "mapped take the cross entropy of the logits: F.cross_entropy(F.linear(hidden, table), targets)",
    )


def _within_a_transform() -> bool:
    """Whether a transform of `torch.func` is at work; one inside another would silently find no derivative.

    Raises:
        GradientError: One is inside another.
    """
    level = torch._C._functorch.maybe_current_level()
    if level is not None and level > 1:
        raise no_second_derivative()
    return level is not None


def _gradients(
    by: Tensor, numbers: Numbers, dtypes: Sequence[torch.dtype | None], saved: Sequence[Any], mine: bool
) -> tuple[Tensor | None, ...]:
    """The gradients of what a loss, or each, is multiplied by: those that came with it, or found now."""
    if numbers.reduction == "none":
        asked = numbers._replace(reduction="sum", best=False)
        hidden, table, bias, factor, targets, weight, _ = saved[:TENSORS]  # the tokens read are for statistics alone
        given = (hidden, table, bias, factor, targets, weight, None)
        saved = Results(*readout_loss_op(*given, by.contiguous(), *asked))[1:5]
        by = torch.ones((), dtype=by.dtype, device=by.device)
    return _scaled(saved[:4], by, numbers.gradients, dtypes, mine)


def _scaled(
    saved: Sequence[Tensor], by: Tensor, wants: Sequence[bool], dtypes: Sequence[torch.dtype | None], mine: bool
) -> tuple[Tensor | None, ...]:
    """The gradients times that of the loss, each in the dtype of what it belongs to."""
    known = not torch.compiler.is_compiling() and by.device.type == "cpu" and type(by) is Tensor  # a fake has no number
    as_they_are = known and float(by) == 1.0

    def scaled(t: Tensor, dtype: torch.dtype | None) -> Tensor:
        if not mine:  # what is kept for another pass is not handed out: gradients are added to in place
            t = t.clone() if as_they_are else t * by
        elif not as_they_are:
            t.mul_(by)
        return t if dtype is None else t.to(dtype)

    return tuple(scaled(t, d) if want else None for t, want, d in zip(saved, wants, dtypes, strict=True))


def _frees_what_it_saved() -> bool:
    """Whether this backward pass is the last: what was saved for it may then be written to."""
    keeps = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps is not None and not keeps()
