"""Keras on PyTorch: a recording of the model's call, its tensors by the names of Keras' variables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import torch
from torch import nn

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.untouched import untouched
from tiebeam.backends.keras.variables import Named
from tiebeam.backends.torch.model import TorchModel
from tiebeam.backends.torch.trace import Trace, trace
from tiebeam.ir import Leaf


class Seen(nn.Module):
    """A Keras model as the recording looks at modules: paths are Keras' own.

    A Keras layer is a module too, but what hangs in its lists is no child of it, and its parameters are listed again
    in every layer above.
    """

    view: KerasModel
    held: list[tuple[str, Named]]

    def __init__(self, view: KerasModel) -> None:
        super().__init__()
        # Past `nn.Module.__setattr__`, which would make the model a child.
        vars(self)["view"] = view
        vars(self)["held"] = [(n, v) for v in view.variables.all for n in v.names]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with untouched(self.view.model):
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
            tensor = found.variable._value
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
