"""Moving a table in one role alone, below autograd, and running the model again."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tiebeam.backends.protocol import RefusedError
from tiebeam.backends.torch.containers import tensors_of
from tiebeam.backends.torch.measuring.passes import Objective
from tiebeam.backends.torch.measuring.roles import backward
from tiebeam.backends.torch.measuring.session import checkpoints_in_sight, gradients_aside
from tiebeam.backends.torch.parts import sharded
from tiebeam.backends.torch.recording.control import CONTROL
from tiebeam.backends.torch.recording.schema import schema_of
from tiebeam.backends.torch.recording.shadow import map_tensors
from tiebeam.backends.torch.session import neutral, unwrapped
from tiebeam.backends.torch.trace import Trace, trace
from tiebeam.core.measuring.gradient_check import reads_in_both
from tiebeam.core.measuring.passes import ROLES, Request, wanted
from tiebeam.core.reading.provenance import coarsest
from tiebeam.errors import InputError

STEPS = {torch.float64: 1e-3, torch.float32: 5e-2}
"""Steps of a difference, in units of the table's std, by what the model computes in."""
WITHIN = 0.1
"""Share of float32's rounding that is left in a float64 loss after operations in float32: they are many, and cancel.

Those of half precision count in full: there a move of a row may be less than what its numbers are rounded by."""


class Moves:
    """One table of a copy of the model; see `core.gradient_check.MovableTable`.

    Args:
        model: Copied, and left alone.
        request: What the loss is.
        dtype: Of the copy.
    """

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request, dtype: torch.dtype
    ) -> None:
        self.model = _copied(model, dtype)
        self.args, self.kwargs = map_tensors(
            (args, dict(kwargs)), lambda t: t.to(dtype) if t.is_floating_point() else t
        )
        self.modules, self.parameters = list(self.model.modules()), list(self.model.parameters())
        self._objective: Objective
        self._whole: Tensor | None = None
        self._table: Tensor
        self._when: dict[str, dict[int, str]] = {}

        def then(traced: Trace, result: Any, returned: Sequence[Tensor]) -> None:
            self._read(traced, request, result, returned)

        with gradients_aside(self.model), checkpoints_in_sight():
            trace(self.model, self.args, self.kwargs, then=then)
        self._check_apart()

    def _check_apart(self) -> None:
        """Refuse a table that is copied once for both roles: what is moved then moves in both."""
        self._when["both"] = {k: v for k, v in self._when["lookup"].items() if k in self._when["readout"]}
        if not self._when["both"]:
            return
        far = np.full(self.width, 10.0 * self.std)
        at = self.held[0] if self.held else 0
        if self.loss("both", at, far) != self.loss("both", at, 0 * far):
            raise InputError(
                f"{self.name!r} cannot be moved in one role alone",
                got="one cast or copy of it, made once and read in both roles",
                hint="tiebeam.measure tells the two gradients apart all the same",
            )

    def _read(self, traced: Trace, request: Request, result: Any, returned: Sequence[Tensor]) -> None:
        asked = wanted(traced.graph)
        reads = reads_in_both(asked, traced.graph)
        key = reads[0].leaf
        self._axis = reads[0].vocab_axis
        self._table = traced.tensors[key]
        self.name = next(v.leaf.name for v in traced.graph.values if v.leaf is not None and v.leaf.key == key)
        if self._table.ndim != 2 or not self._table.requires_grad:
            raise InputError(f"{self.name!r} gets no gradient that could be checked", got="a table that is frozen")
        rows = self._rows(self._table.detach())
        self.vocab, self.width = rows.shape
        self.std = float(torch.linalg.vector_norm(rows)) / max(1, rows.numel()) ** 0.5 or 1.0
        self._objective = Objective.of(traced, asked, request)
        loss = self._objective(result, returned)
        if not bool(torch.isfinite(loss.detach())):
            raise InputError(
                "the loss is not finite: it has no slope to compare with",
                got=f"a loss of {float(loss.detach())}",
                hint="tiebeam.measure(model, batch) says what else is not",
            )
        narrow = coarsest(traced.graph, key, asked.end(request))
        exact = loss.dtype if narrow is None else getattr(torch, narrow)
        self.step, self.eps = STEPS.get(exact, 5e-2), torch.finfo(exact).eps / 2
        if exact == torch.float32 != loss.dtype:
            self.eps *= WITHIN
        if loss.requires_grad:
            [self._whole] = backward(loss, [self._table])
        if self._whole is not None and self._whole.layout is not torch.strided:
            self._whole = self._whole.to_dense()
        ordinals = [ordinal for _, ordinal in traced.steps]
        for role in ROLES:
            nodes = [i for r in reads if r.role == role for i in (r.node, *r.chain)]
            self._when[role] = {ordinals[i]: traced.graph.nodes[i].label for i in nodes if ordinals[i] >= 0}
        looked_up = [traced.ids[r.ids] for r in reads if r.ids is not None and r.ids in traced.ids]
        self.held = tuple(sorted({int(i) for t in looked_up for i in t.flatten().tolist() if 0 <= i < self.vocab}))

    def _rows(self, t: Tensor) -> Tensor:
        return t if self._axis == 0 else t.mT

    def gradient(self, row: int) -> npt.NDArray[np.float64]:
        """What the backward pass gives for a row."""
        if self._whole is None:
            return np.zeros(self.width)
        found: npt.NDArray[np.float64] = self._rows(self._whole)[row].detach().double().cpu().numpy()
        return found

    def loss(self, role: str, row: int, move: npt.NDArray[np.float64]) -> float:
        """The loss with a row moved while the operations of one role run."""
        delta = torch.from_numpy(move).to(self._table)
        place = self._rows(self._table.detach())[row]

        @contextmanager
        def moved() -> Iterator[None]:
            before = place.clone()
            place.add_(delta)
            try:
                yield
            finally:
                place.copy_(before)

        # Recorded and kept as in the first pass, so that the same operations run.
        def run(ordinal: int, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            with moved():
                return func(*args, **(kwargs or {}))

        during = During(self._when[role], run)
        with neutral(self.modules, self.parameters, drop=False), checkpoints_in_sight(), during:
            result = self.model(*self.args, **self.kwargs)
        if during.missed:
            raise InputError(
                f"{self.name!r} cannot be moved in one role alone: the model does not run the same operations again",
                got="another operation where the table was read",
                hint="seed what the model draws outside of torch, NumPy and random, or check a smaller part of it",
            )
        with torch.no_grad():
            return float(self._objective(result, list(tensors_of(result, modules=True))))


def _copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    if name := next((n for n, p in model.named_parameters() if sharded(p)), None):
        raise InputError(
            f"{type(model).__name__} lies in shards, and a check moves rows of its table",
            got=f"{name!r} of several processes",
            expected="a model that is whole",
            hint="check it before it is sharded",
        )
    try:
        twin = copy.deepcopy(unwrapped(model))
    except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied, and a check moves its table",
            got=f"{type(error).__name__}: {error}",
            hint="check before wrapping the model, and with no gradient attached to its buffers",
        ) from error
    return twin.to(dtype)


def moves_of(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
) -> tuple[Moves, tuple[str, ...]]:
    """A copy of the model in float64, where differences are sharp; in float32 where its operations know no other."""
    try:
        return Moves(model, args, kwargs, request, torch.float64), ()
    except RefusedError as refused:
        note = f"checked in float32: in float64 the model raises {type(refused.__cause__).__name__}"
    return Moves(model, args, kwargs, request, torch.float32), (note,)


class During(TorchDispatchMode):
    """Runs some operations, by how many ran before, in another way; counts as `Recorder` does.

    Args:
        when: Their numbers, and their names.
        run: Called with the number, the operation and its arguments.
    """

    supports_higher_order_operators = True

    def __init__(self, when: Mapping[int, str], run: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.when, self.run, self.ran = when, run, 0
        self.missed = dict(when)  # what has not run at its place

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = schema_of(func)
        if schema.composite:
            with self:
                out = func.decompose(*args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        if schema.name in CONTROL:
            with self:
                return CONTROL[schema.name](*args, **(kwargs or {}))
        ordinal, counts = self.ran, schema.name != "detach"
        self.ran += counts
        if not counts or ordinal not in self.when:
            return func(*args, **(kwargs or {}))
        if schema.name in self.when[ordinal]:  # a product written as multiply and sum goes by both names
            self.missed.pop(ordinal, None)
        return self.run(ordinal, func, args, kwargs)
