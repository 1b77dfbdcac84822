"""A PyTorch model as tiebeam's public calls use it: trace, ask about weights, write them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from tiebeam.backends.tables import AskedOnce
from tiebeam.backends.torch import weights
from tiebeam.backends.torch.aside import put_aside
from tiebeam.backends.torch.diagnose import check_shaped, unfit_modules, without_values
from tiebeam.backends.torch.fixes import TorchFixes
from tiebeam.backends.torch.measuring.moves import moves_of
from tiebeam.backends.torch.measuring.passes import differentiate
from tiebeam.backends.torch.measuring.quantising import Swaps
from tiebeam.backends.torch.names import all_parameters, module_tree
from tiebeam.backends.torch.operations.operator import TorchOperator
from tiebeam.backends.torch.parts import sharded
from tiebeam.backends.torch.shorten import shorter_arguments
from tiebeam.backends.torch.trace import How, Trace, trace
from tiebeam.core.finding import Finding
from tiebeam.core.findings import Fixes
from tiebeam.core.measuring.gradient_check import MovableTable
from tiebeam.core.measuring.passes import Passed, Request, Wanted
from tiebeam.core.measuring.sensitivity import QuantisableTable
from tiebeam.errors import InputError, ShapeError
from tiebeam.ir import Leaf


def _matrix(t: torch.Tensor) -> torch.Tensor:
    """The tensor without axes of size one beyond its two (a table stored as (1, vocab, width))."""
    while t.ndim > 2:
        t = t.squeeze(next(i for i, n in enumerate(t.shape) if n == 1))
    return t


class TorchModel:
    """One `nn.Module`.

    Args:
        model: The module.

    Raises:
        InputError: Some of its parameters have no shape yet.
    """

    framework = "torch"
    packages: tuple[str, ...] = ("torch",)

    def __init__(self, model: nn.Module) -> None:
        check_shaped(model)
        self.model = model
        self._how: How | None = None

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to, for its signature."""
        return self.model.forward

    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def arguments(self, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, arrays turned into tensors on the model's device."""
        with torch.inference_mode(False):
            if isinstance(inputs, Mapping):
                return (), {k: self._tensor(v) for k, v in inputs.items()}
            if isinstance(inputs, tuple):
                return tuple(self._tensor(v) for v in inputs), {}
            return (self._tensor(inputs),), {}

    def _tensor(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value).to(self.device())
        # What was made in inference mode cannot take part in a pass that records gradients.
        return value.clone() if isinstance(value, torch.Tensor) and value.is_inference() else value

    def trace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        logits: bool = False,
        seed: int | None = None,
        measure: bool = True,
    ) -> Trace:
        # What confirms a pass, or repeats it, is run as that one was.
        traced = trace(self.model, args, kwargs, logits=logits, seed=seed, other=not measure, how=self._how)
        self._how = traced.how
        return traced

    def differentiate(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[Trace, Wanted, Passed]:
        return differentiate(self.model, args, kwargs, request)

    def movable(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[MovableTable, tuple[str, ...]]:
        return moves_of(self.model, args, kwargs, request)

    def quantisable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> QuantisableTable:
        return Swaps(self.model, args, kwargs)

    def operator(self, optimizer: Any) -> TorchOperator:
        return TorchOperator(self.model, optimizer)

    def shorter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        with torch.inference_mode(False):
            return shorter_arguments(args, kwargs)

    def diagnose(self) -> Finding | ShapeError | None:
        return next(unfit_modules(self.model), None) or without_values(self.model)

    def weights(self, traced: Trace) -> AskedOnce[torch.Tensor]:
        return AskedOnce(
            traced.tensors,
            lambda t, vocab_axis: weights.table_statistics(_matrix(t), vocab_axis),
            lambda a, b, **axes: weights.distance(_matrix(a), _matrix(b), **axes),
        )

    def parameters(self) -> int:
        """Elements of all parameters, each once."""
        return sum(p.numel() for p in self.model.parameters())

    def fixes(self) -> Fixes:
        return TorchFixes(self.model)

    def trainable_elsewhere(self, names: Sequence[str]) -> float:
        """Share of the elements of all parameters but `names` that is trainable; 0 where there are none."""
        others = [p for n, p in self.model.named_parameters() if n not in names]
        total = sum(p.numel() for p in others)
        return sum(p.numel() for p in others if p.requires_grad) / total if total else 0.0

    def body_dtype(self, names: Sequence[str]) -> str | None:
        """Dtype of most elements of all floating parameters but `names`."""
        counts: dict[torch.dtype, int] = {}
        for n, p in self.model.named_parameters():
            if n not in names and p.is_floating_point():
                counts[p.dtype] = counts.get(p.dtype, 0) + p.numel()
        return str(max(counts, key=lambda d: counts[d])).removeprefix("torch.") if counts else None

    def shared(self) -> tuple[tuple[str, ...], ...]:
        """Groups of parameter paths that are one object, in modules that are not."""
        groups: dict[int, list[str]] = {}
        for path, module in self.model.named_modules():
            for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
                groups.setdefault(id(p), []).append(f"{path}.{name}" if path else name)
        return tuple(tuple(g) for g in groups.values() if len(g) > 1)

    def devices(self) -> dict[str, str]:
        """Device of module paths by the device map that was dispatched, if any."""
        found = getattr(self.model, "hf_device_map", None)
        return {str(k): str(v) for k, v in found.items()} if isinstance(found, Mapping) else {}

    def vocab_bound(self) -> int | None:
        """An upper bound for token ids: the tallest embedding, or the largest matrix's longer side."""
        if tables := self.table_rows():
            return max(tables.values())
        matrices = [max(p.shape) for p in self.model.parameters() if p.ndim == 2]
        return max(matrices, default=None)

    def table_rows(self) -> dict[str, int]:
        """Rows of its embeddings."""
        modules = self.model.named_modules()
        return {name: m.num_embeddings for name, m in modules if isinstance(m, nn.Embedding | nn.EmbeddingBag)}

    def check_writable(self, traced: Trace, leaf: Leaf) -> None:
        if leaf.fetched and not sharded(traced.tensors[leaf.key]):
            raise InputError(
                f"{leaf.name!r} lies elsewhere: a wrapper fetches it for each pass, and what is written is lost",
                expected="parameters in memory",
                hint="initialise before offloading",
            )
        weights.check_writable(_matrix(traced.tensors[leaf.key]))

    def write(
        self,
        traced: Trace,
        leaf: Leaf,
        *,
        vocab_axis: int,
        seed: int,
        ordinal: int,
        std: float,
        zero_rows: tuple[int, ...],
    ) -> None:
        table = _matrix(traced.tensors[leaf.key])
        weights.write_table(table, vocab_axis=vocab_axis, seed=seed, ordinal=ordinal, std=std, zero_rows=zero_rows)

    def keep(self, traced: Trace, leaf: Leaf) -> Callable[[], None]:
        """Put a table aside; the result puts it back."""
        return put_aside(traced.tensors[leaf.key])

    def zero_rows(self, traced: Trace, leaf: Leaf, vocab_axis: int) -> tuple[int, ...]:
        """Rows that are all zero; where all are, those that an embedding calls padding."""
        table = _matrix(traced.tensors[leaf.key])
        rows = weights.zero_rows(table, vocab_axis)
        if len(rows) < table.shape[vocab_axis]:
            return rows
        homes = [n.rpartition(".")[0] for n in leaf.names]
        modules = [m for n, m in module_tree(self.model) if n in homes]
        return tuple({m.padding_idx for m in modules if isinstance(m, nn.Embedding) and m.padding_idx is not None})

    def zero(self, names: Sequence[str]) -> tuple[tuple[str, ...], Callable[[], None]]:
        """Set trainable parameters to zero: the names that were, and what puts them back."""
        parameters = all_parameters(self.model)
        found = [n for n in names if n in parameters and parameters[n].requires_grad]
        copies = [(parameters[n], parameters[n].detach().clone()) for n in found]
        for n in found:
            weights.zero_(parameters[n])

        def put_back() -> None:
            with torch.no_grad():
                for p, copy in copies:
                    p.copy_(copy)

        return tuple(found), put_back
