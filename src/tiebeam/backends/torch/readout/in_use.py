"""A model whose loss is computed without its logits, for as long as that is wanted."""

import copy
import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from tiebeam.backends.torch.readout.deferred import Deferred, Recipe
from tiebeam.backends.torch.readout.nodes import Origin, Tally
from tiebeam.backends.torch.session import unwrapped
from tiebeam.backends.torch.wrapped import inside, is_compiled, joined
from tiebeam.blocks.readout_loss.torch.plain import in_sight
from tiebeam.blocks.readout_loss.torch.sharded import is_sharded
from tiebeam.core.facts import Readout
from tiebeam.core.report import Report
from tiebeam.core.training.groups import check_report
from tiebeam.errors import InputError

BY_HAND = "call tiebeam.torch.readout_loss(hidden, table, targets) where the model computes its loss"


class ReadoutLossInUse:
    """See `use_readout_loss`. As a context manager it ends with the block.

    Attributes:
        tally: `losses` that were computed without logits; how often `logits` were computed after all, and the
            operations that looked at them, `why`.
    """

    def __init__(self, readouts: dict[nn.Linear, float | None]) -> None:
        self.tally = Tally()
        self._ours = [_Deferring(module, soft_cap, self.tally) for module, soft_cap in readouts.items()]

    def remove(self) -> None:
        """Let the model compute its logits again. Twice is once."""
        for ours in self._ours:
            ours.remove()
        self._ours.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.tally}, {'in use' if self._ours else 'removed'})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class _Deferring:
    """Stands for a layer's `forward`. A copy of the layer, or one that is loaded, has its forward as it was."""

    def __init__(self, module: Any, soft_cap: float | None, tally: Tally) -> None:
        self.module, self.soft_cap, self.tally, self.active = module, soft_cap, tally, True
        self.before: Callable[[Tensor], Tensor] | None = vars(module).get("forward")
        module.forward = self

    def __call__(self, hidden: Tensor) -> Tensor:
        module = self.module
        forward = self.before or _own_forward(module)
        if (
            not self.active
            or torch.compiler.is_compiling()
            or torch._C._get_tracing_state() is not None
            or in_sight()
            or not _plain(hidden, module.weight, module.bias)
        ):
            return forward(hidden)
        if hidden.device != module.weight.device:
            if self.before is not None:
                return forward(hidden)  # which may bring them together
            raise InputError(
                "logits that use_readout_loss leaves uncomputed, in a copy of the model on another device",
                got=f"a hidden state on {hidden.device}, the table on {module.weight.device}",
                expected="one device: a copy that nn.DataParallel makes for each pass reads the model's own table",
                hint="DistributedDataParallel, one process for each device; or CUDA_VISIBLE_DEVICES=0",
            )
        origin = Origin.of(module, forward, hidden, self.tally)
        return Deferred(Recipe.of(origin, self.soft_cap), origin.dtype)

    def remove(self) -> None:
        """Leave no trace; where somebody has wrapped this meanwhile, pass through."""
        self.active = False
        current: Any = vars(self.module).get("forward")
        above: Any = None
        while isinstance(current, _Deferring) and current is not self:
            current, above = current.before, current
        if current is not self:
            return
        if above is not None:
            above.before = self.before
        elif self.before is None:
            vars(self.module).pop("forward")
        else:
            self.module.forward = self.before

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.before is not None:
            return copy.deepcopy(self.before, memo)
        return _own_forward(copy.deepcopy(self.module, memo))

    def __reduce__(self) -> Any:
        return (_own_forward, (self.module,)) if self.before is None else (_as_it_is, (self.before,))


def _own_forward(module: Any) -> Any:
    return type(module).forward.__get__(module)


def _as_it_is(forward: Any) -> Any:
    return forward


def _plain(hidden: Tensor, *weights: Tensor | None) -> bool:
    """Whether tensors have numbers of this process, and no transform is at work on them."""
    there = [t for t in weights if t is not None]
    if torch._C._functorch.maybe_current_level() is not None:
        return False
    meta = hidden.is_meta and all(t.is_meta for t in there)
    return not (meta or any(map(is_sharded, (hidden, *there))))


def use_readout_loss(model: nn.Module, report: Report) -> ReadoutLossInUse:
    """Let a model that computes logits and their cross entropy itself do without the logits, as Hugging Face's do.

    From now on the layer that reads the table out returns logits that remember how they would be computed. The
    model's own code scales, caps, casts, shifts and reshapes them, and where it takes their cross entropy, that is
    `readout_loss`. Where it does anything else with them they are computed after all, as they would have been; so
    logits that a model returns can be looked at, and generating text works. No weight changes, and none is copied.

    Args:
        model: The model, or a wrapper of it (data-parallel, `torch.compile`).
        report: Of `tiebeam.inspect(model, ...)`, or of the same model before it was wrapped. It says which layer reads
            the table, and with which soft cap; where the model's code caps otherwise, the logits are computed.

    Returns:
        A context manager; or keep it, look at `.tally`, and call `.remove()`.

    Raises:
        InputError: The report is none, or of another model, or holds no readout by a linear layer: an adapter adds to
            its logits, its table is not the layer's own (weight normalisation), or a wrapper brings its parameters only
            for its own pass. Nothing was changed then.

    Warns: The layer is compiled. Whatever compiles the model sees it as it was: logits are then computed, and not
        counted.

    Example:
        >>> import tiebeam
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> model, ids = MiniGPT(MiniGPTConfig.from_scheme("C", vocab=99, width=16)), torch.arange(9)[None]
        >>> report = tiebeam.inspect(model, ids)
        >>> with use_readout_loss(model, report) as in_use:
        ...     loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[0, 1:])
        >>> in_use.tally
        Tally(losses=1, logits=0, why=())
    """
    check_report(report)
    whole = unwrapped(model)
    prefix, inner = inside(whole, report)
    modules, tensors = dict(inner.named_modules()), dict(inner.named_parameters(remove_duplicate=False))
    found: dict[nn.Linear, float | None] = {}
    compiled = False
    for table in report.tables:
        for use in table.readouts:
            found[_layer(use, modules, tensors, report)] = use.soft_cap
            compiled = compiled or is_compiled(whole, joined(prefix, use.where))
    if not found:
        raise InputError(
            "the report holds no readout, so there are no logits to do without",
            got=", ".join(f"{t.name!r} is {t.state}" for t in report.tables) or "no table",
            hint="report = tiebeam.inspect(model, inputs), with inputs for which the model computes logits",
        )
    if compiled:
        warnings.warn(
            "use_readout_loss changes nothing of a model under torch.compile: its logits are computed. "
            "Hint: compile the part that ends in the hidden state, or call tiebeam.torch.readout_loss in the model",
            stacklevel=2,
        )
    return ReadoutLossInUse(found)


def _layer(use: Readout, modules: dict[str, nn.Module], tensors: dict[str, nn.Parameter], report: Report) -> nn.Linear:
    module: Any = modules.get(use.where)
    if module is None or use.name not in tensors:
        raise InputError(
            f"the report is of another model: it reads {use.name!r} out in {use.where!r}",
            got=f"a report of {report.model}",
            hint="report = tiebeam.inspect(model, inputs)",
        )
    where = f"the readout of {use.name!r} in {repr(use.where) if use.where else 'the model itself'}"
    if type(module).forward is not nn.Linear.forward or module.weight is not tensors[use.name]:
        raise InputError(
            f"{where} is no linear layer of that table",
            got=type(module).__name__,
            expected="nn.Linear, whose weight is the table",
            hint=BY_HAND,
        )
    if use.delta or use.reparametrized:
        raise InputError(
            f"{where} adds something to its product with the table",
            got=use.reparametrized or f"a low-rank product: {', '.join(use.delta)}",
            expected="logits of the table alone",
            hint=BY_HAND + "; or merge the adapter",
        )
    if hasattr(type(module), "_get_fsdp_state"):
        raise InputError(
            f"{where} is sharded by itself: its table is whole only while that layer runs",
            expected="a layer that is sharded with the rest of the model",
            hint="leave it to fully_shard(model), without a fully_shard of its own",
        )
    return module  # type: ignore[no-any-return]
