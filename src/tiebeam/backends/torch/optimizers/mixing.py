"""Weighting what the lookup sends to a tied table, while the model trains."""

import math
import threading
from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tiebeam.backends.torch.wrapped import inside, is_compiled, joined
from tiebeam.core.facts import Lookup
from tiebeam.core.report import Report
from tiebeam.core.training.groups import check_report
from tiebeam.errors import InputError, RangeError

GATHERS = frozenset(("embedding", "embedding_bag", "__getitem__", "index_select", "index", "gather", "take_along_dim"))


class Mixing:
    """The weight in force; see `mix_roles`. As a context manager it ends with the block.

    Attributes:
        lookup: The weight. May be set while training; at 1.0 no hook is left on the model.
    """

    def __init__(self, places: dict[nn.Module, list[Tensor]], paths: dict[nn.Module, str], weight: float) -> None:
        self._places, self._paths = places, paths
        self._handles: list[Any] = []
        self._open: dict[tuple[int, nn.Module], list[_Weighing]] = {}
        self.lookup = weight

    @property
    def lookup(self) -> float:
        return self._weight

    @lookup.setter
    def lookup(self, weight: float) -> None:
        self._weight = _checked(weight)
        if weight == 1.0:
            self.remove()
        elif not self._handles:
            for module in self._places:
                self._handles.append(module.register_forward_pre_hook(self._enter, prepend=True))
                self._handles.append(module.register_forward_hook(self._leave, always_call=True))

    def remove(self) -> None:
        """Take the hooks off: gradients arrive as they are again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # which would trace the mode too, and weight twice
            raise _compiled_error(self._paths[module])
        weighing = _Weighing(self._places[module], self)
        self._open.setdefault((threading.get_ident(), module), []).append(weighing)
        weighing.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return  # what `_enter` refused
        opened = self._open.get((threading.get_ident(), module))
        if not opened:
            return  # another pre-hook raised before ours
        weighing = opened.pop()
        weighing.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        reads_ids = all(not a.is_floating_point() for a in args if isinstance(a, Tensor))
        if reads_ids and output is not None and not weighing.found:
            raise InputError(
                f"no lookup was seen in {self._paths[module] or 'the model'!r}: its gradient would not be weighted",
                got="a table that is cast, scaled or copied before it is looked up, or read by a product",
                expected="the parameter itself, in nn.Embedding, F.embedding or table[ids]",
                hint="mixing.remove(), or look up the parameter itself",
            )


class _Weighing(TorchFunctionMode):
    """Weights the gradient of what is looked up in some tables."""

    def __init__(self, tables: list[Tensor], mixing: Mixing) -> None:
        super().__init__()
        self.tables, self.mixing, self.found = tables, mixing, False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = (*args, *(kwargs or {}).values())
        if getattr(func, "__name__", "") in GATHERS and any(a is t for a in given for t in self.tables):
            self.found = True
            rows = out[0] if isinstance(out, tuple) else out
            if rows.requires_grad:
                weight = self.mixing.lookup
                rows.register_hook(lambda grad: grad * weight)
        return out


def mix_roles(model: nn.Module, report: Report, *, lookup: float) -> Mixing:
    """Weight what the lookup sends to the tied tables, from the next forward pass on.

    The gradient of a tied table becomes `lookup * (the lookup's) + (the readout's)`, exactly: what is weighted is the
    gradient of the rows that were looked up, and nothing lies behind those but the table. No other gradient changes,
    and neither does the forward pass. It composes with accumulation, gradient scalers and checkpoints.

    Args:
        model: The model, or a data-parallel wrapper of it; compiled at most in parts that hold no lookup.
        report: Of `tiebeam.inspect(model, ...)`, or of the same model before it was wrapped.
        lookup: 0 or more. Above 1 it makes up for a readout that dominates; 1.0 installs nothing.

    Returns:
        A context manager; or keep it, set `.lookup` as training goes on, and call `.remove()`.

    Raises:
        RangeError: `lookup` is negative or not finite.
        InputError: The report holds no table that is tied, or is of another model, or the lookup is in what
            `torch.compile` compiles; in the next forward pass: where a lookup cannot be seen at its parameter.

    Assumes: no compiled graph of the model is older than this. Such a graph knows of no hooks and weights nothing.

    Source: the gradient of a table with two roles is the sum of two.

    Example:
        >>> import torch, tiebeam, tiebeam.torch
        >>> from tiebeam.zoo.minigpt import MiniGPTConfig
        >>> from tiebeam.zoo.torch.minigpt import MiniGPT
        >>> model, ids = MiniGPT(MiniGPTConfig.from_scheme("C", vocab=99, width=16)), torch.arange(8)[None]
        >>> report = tiebeam.inspect(model, ids)
        >>> plain = tiebeam.measure(model, ids).role_ratio
        >>> with tiebeam.torch.mix_roles(model, report, lookup=4.0):
        ...     mixed = tiebeam.measure(model, ids).role_ratio
        >>> round(mixed / plain, 4)
        4.0
    """
    _checked(lookup)
    check_report(report)
    prefix, inner = inside(model, report)
    modules, tensors = dict(inner.named_modules()), dict(inner.named_parameters(remove_duplicate=False))
    uses = [use for t in report.tables if t.tied for use in t.lookups]
    if not uses:
        raise InputError(
            "no table of the report is tied: there are no two roles to mix",
            got=", ".join(f"{t.name!r} is {t.state}" for t in report.tables) or "no table",
            hint="give an untied table a rate of its own instead: tiebeam.torch.param_groups(model, report, lr=...)",
        )
    places: dict[nn.Module, list[Tensor]] = {}
    for use in uses:
        _check(use, modules, tensors, report)
        if is_compiled(model, joined(prefix, use.where)):  # graphs that exist do not see hooks that come later
            raise _compiled_error(joined(prefix, use.where))
        places.setdefault(modules[use.where], []).append(tensors[use.name])
    return Mixing(places, {modules[u.where]: u.where for u in uses}, lookup)


def _checked(weight: float) -> float:
    if not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
        raise RangeError("a weight of the lookup's gradient", got=repr(weight), expected="a number, 0 or more")
    return weight


def _check(use: Lookup, modules: dict[str, nn.Module], tensors: dict[str, nn.Parameter], report: Report) -> None:
    if use.where not in modules or use.name not in tensors:
        raise InputError(
            f"the report is of another model: it looks {use.name!r} up in {use.where!r}",
            got=f"a report of {report.model}",
            hint="report = tiebeam.inspect(model, inputs)",
        )
    if use.kind != "gather":
        raise InputError(
            f"{use.name!r} is looked up by a product with a one-hot matrix, whose gradient cannot be weighted here",
            expected="a gather: nn.Embedding, F.embedding or table[ids]",
        )


def _compiled_error(path: str) -> InputError:
    return InputError(
        f"the lookup in {path or 'the model'!r} is compiled: its gradient cannot be weighted",
        got="a model under torch.compile",
        expected="a lookup that runs as it is written",
        hint="compile the blocks behind the lookup one by one (block.compile()), and not the whole model",
    )
