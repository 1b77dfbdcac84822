"""Keras on PyTorch: a recording of the model's call, its tensors by the names of Keras' variables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import torch
from torch import nn

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.optimizers.silent import states_of
from tiebeam.backends.keras.untouched import untouched
from tiebeam.backends.keras.variables import Named
from tiebeam.backends.torch.measuring.moves import moves_of
from tiebeam.backends.torch.measuring.passes import differentiate
from tiebeam.backends.torch.model import TorchModel
from tiebeam.backends.torch.names import Paths, StandIn
from tiebeam.backends.torch.trace import Trace, trace
from tiebeam.core.measuring.gradient_check import MovableTable
from tiebeam.core.measuring.passes import Passed, Request, Wanted
from tiebeam.ir import Leaf


class Seen(StandIn):
    """A Keras model as the recording looks at modules: paths are Keras' own.

    A Keras layer is a module too, but what hangs in its lists is no child of it, and its parameters are listed again
    in every layer above.
    """

    view: KerasModel
    held: list[tuple[str, Named]]
    instead: dict[int, torch.Tensor]

    def __init__(self, view: KerasModel) -> None:
        super().__init__()
        # Past `nn.Module.__setattr__`, which would make the model a child.
        vars(self)["view"] = view
        vars(self)["held"] = [(n, v) for v in view.variables.all for n in v.names]
        vars(self)["instead"] = {}  # by a variable's id, the tensor that stands for it

    def __deepcopy__(self, memo: Any) -> "Seen":
        """The same layers with tensors of their own: a copy that needs no config."""
        twin = Seen(self.view)
        for found in self.view.variables.all:
            tensor = found.variable._value
            twin.instead[id(found.variable)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return twin

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        variables = (v.variable for v in self.view.variables.all)
        values = [(v, self.instead[id(v)]) for v in variables if id(v) in self.instead]
        with untouched(self.view.model, values):
            return self.view.model(*args, **kwargs)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        return self._tensors(True, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        return self._tensors(False, remove_duplicate)

    def _tensors(self, parameter: bool, remove_duplicate: bool) -> Iterator[tuple[str, torch.Tensor]]:
        seen: set[int] = set()
        for name, found in self.held:
            tensor = self.instead.get(id(found.variable), found.variable._value)
            if found.parameter == parameter and not (remove_duplicate and id(tensor) in seen):
                seen.add(id(tensor))
                yield name, tensor

    def named_modules(
        self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        yield "", self
        layers = self.view.layers
        for layer in layers.all:
            yield layers.paths[id(layer)], layer

    def module_paths(self) -> Paths:
        return list(self.named_modules())

    def tensor_paths(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        for parameter in (True, False):
            for name, tensor in self._tensors(parameter, remove_duplicate=False):
                yield name, tensor, parameter


class KerasOnTorch(KerasModel, TorchModel):
    """One Keras model whose tensors are PyTorch's."""

    operator = None  # type: ignore[assignment]  # a Keras variable has one shape for life: no model to operate on

    def __init__(self, model: keras.Layer) -> None:
        KerasModel.__init__(self, model)
        self.seen = Seen(self)

    def trace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        logits: bool = False,
        seed: int | None = None,
        measure: bool = True,
    ) -> Trace:
        traced: Trace = self.noted(trace(self.seen, args, kwargs, logits=logits, seed=seed, other=not measure))
        return traced

    def differentiate(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[Trace, Wanted, Passed]:
        traced, asked, passed = differentiate(
            self.seen, args, kwargs, replace(request, optimizer=self._states(request))
        )
        return self.noted(traced), asked, passed

    def _states(self, request: Request) -> Any:
        """A Keras optimizer's moments by tensor, as PyTorch's own optimizers hold theirs."""
        if not isinstance(request.optimizer, keras.optimizers.Optimizer):
            return request.optimizer
        tensors = [v.variable._value for v in self.variables.parameters]
        held = {t: states_of(request.optimizer, t) for t in tensors}
        return SimpleNamespace(state={t: dict(enumerate(s.value for s in found)) for t, found in held.items()})

    def movable(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[MovableTable, tuple[str, ...]]:
        return moves_of(self.seen, args, kwargs, request)

    def zero_rows(self, traced: Trace, leaf: Leaf, vocab_axis: int) -> tuple[int, ...]:
        """Rows that are all zero; none where all are, for nothing says which of them are padding."""
        rows = super().zero_rows(traced, leaf, vocab_axis)
        return rows if len(rows) < traced.tensors[leaf.key].shape[vocab_axis] else ()

    def zero(self, names: Sequence[str]) -> tuple[tuple[str, ...], Callable[[], None]]:
        """Set trainable parameters to zero: the names that were, and what puts them back."""
        found = self.variables.to_zero(names)
        copies = [(v.variable, v.variable._value.detach().clone()) for v in found]
        for variable, copy in copies:
            variable.assign(torch.zeros_like(copy))

        def put_back() -> None:
            for variable, copy in copies:
                variable.assign(copy)

        return tuple(v.name for v in found), put_back
