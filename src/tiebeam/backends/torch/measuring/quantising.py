"""Another table in one role alone: what reads it there is given other rows, and nothing of the model is written."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tiebeam.backends.torch.containers import tensors_of
from tiebeam.backends.torch.measuring.moves import During
from tiebeam.backends.torch.measuring.session import checkpoints_in_sight, gradients_aside
from tiebeam.backends.torch.recording.shadow import map_tensors
from tiebeam.backends.torch.session import neutral
from tiebeam.backends.torch.trace import Trace, trace
from tiebeam.core.measuring.passes import ROLES, Role, RoleRead, wanted
from tiebeam.core.measuring.quantise import Rows
from tiebeam.errors import InputError


class Swaps:
    """The tables of a model that each role reads; see `core.sensitivity.QuantisableTable`.

    Args:
        model: Run as it is, once for each question.

    Raises:
        InputError: It returns no logits, reads no table in both roles, or reads one copy of it in both at once.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        self.modules, self.parameters = list(model.modules()), list(model.parameters())
        self.names: dict[Role, str] = {}
        self._when: dict[Role, dict[int, str]] = {}
        self._leaves: dict[Role, list[tuple[Tensor, int]]] = {}
        self._base: npt.NDArray[np.float32]

        def then(traced: Trace, result: Any, returned: Sequence[Tensor]) -> None:
            self._read(traced, returned)

        with gradients_aside(model), checkpoints_in_sight():
            trace(model, args, kwargs, then=then)

    def _read(self, traced: Trace, returned: Sequence[Tensor]) -> None:
        graph, asked = traced.graph, wanted(traced.graph)
        if graph.meta:
            raise InputError("there is nothing to round", got="tensors without values", expected="real tensors")
        if asked.logits is None or None in asked.main:
            raise InputError(
                "nothing can be compared",
                got="a model that returns no logits over a vocabulary"
                if asked.logits is None
                else "a table in one role",
                expected="logits, and a table that is looked up and one that is read out",
                hint="tiebeam.inspect(model, inputs) says what is read where",
            )
        self._at = graph.outputs.index(asked.logits)
        self._base = _flat(returned[self._at])
        names = {v.leaf.key: v.leaf.name for v in graph.values if v.leaf is not None}
        ordinals = [ordinal for _, ordinal in traced.steps]
        for role, main in zip(ROLES, asked.main, strict=True):
            reads = [r for r in asked.reads if r.role == role and r.table == main]
            keys = {r.leaf: r.vocab_axis for r in reads}
            self._leaves[role] = [(_plain(traced.tensors[k], names[k]), axis) for k, axis in keys.items()]
            self.names[role] = names[next(iter(keys))]
            nodes = [i for r in reads for i in (r.node, *r.chain)]
            self._when[role] = {ordinals[i]: graph.nodes[i].label for i in nodes if ordinals[i] >= 0}
        self.tied = asked.main[0] == asked.main[1]
        self.dtype = str(self._leaves["readout"][0][0].dtype).removeprefix("torch.")
        self._check_apart()
        self.held = self._looked_up(traced, asked.reads, asked.main[0])

    def _check_apart(self) -> None:
        both = self._when["lookup"].keys() & self._when["readout"].keys()
        if self.tied and both:
            raise InputError(
                f"{self.names['readout']!r} cannot be rounded in one role alone",
                got="one cast or copy of it, made once and read in both roles",
                hint="outside of autocast, or with the copy made for each use, the roles can be told apart",
            )

    def _looked_up(self, traced: Trace, reads: Sequence[RoleRead], table: int | None) -> tuple[int, ...]:
        vocab = len(self.rows("lookup"))
        ids = [r.ids for r in reads if r.role == "lookup" and r.table == table]
        held = [traced.ids[i] for i in ids if i is not None and i in traced.ids]
        return tuple(sorted({int(i) for t in held for i in t.flatten().tolist() if 0 <= i < vocab}))

    def rows(self, role: Role) -> Rows:
        """The table that a role reads."""
        table, axis = self._leaves[role][0]
        turned = table.detach() if axis == 0 else table.detach().mT
        found: Rows = turned.float().cpu().numpy()
        return found

    def logits(self, instead: Mapping[Role, Rows]) -> npt.NDArray[np.float32]:
        """Logits with other rows in some roles."""
        if not instead:
            return self._base
        twins: dict[Role, dict[int, Tensor]] = {
            role: {_storage(t): _twin(t, axis, rows) for t, axis in self._leaves[role]}
            for role, rows in instead.items()
        }
        roles = {ordinal: role for role in instead for ordinal in self._when[role]}

        def run(ordinal: int, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            twin = twins[roles[ordinal]]
            args, kwargs = map_tensors((args, dict(kwargs or {})), lambda t: _other(t, twin))
            return func(*args, **kwargs)

        during = During({k: v for role in instead for k, v in self._when[role].items()}, run)
        with neutral(self.modules, self.parameters, drop=False), checkpoints_in_sight(), during:
            result = self.model(*self.args, **self.kwargs)
        if during.missed:
            raise InputError(
                f"{self.names['readout']!r} cannot be rounded in one role alone: the model does not run the same "
                "operations again",
                got="another operation where the table was read",
                hint="seed what the model draws outside of torch, NumPy and random",
            )
        return _flat(list(tensors_of(result, modules=True))[self._at])


def _plain(table: Tensor, name: str) -> Tensor:
    if type(table) not in (Tensor, nn.Parameter) or table.layout is not torch.strided or not table.is_floating_point():
        raise InputError(
            f"{name!r} cannot be rounded",
            got=f"a {type(table).__name__} of {table.dtype}",
            expected="a plain tensor of floats: not sharded, not quantised already",
        )
    if table.ndim != 2:
        raise InputError(f"{name!r} cannot be rounded", got=f"shape {tuple(table.shape)}", expected="a matrix")
    return table


def _storage(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _twin(table: Tensor, axis: int, rows: Rows) -> Tensor:
    """All of a table's storage, as a flat tensor, with other rows where the table lies."""
    size = table.untyped_storage().nbytes() // table.element_size()
    flat = table.detach().as_strided((size,), (1,), 0).clone()
    place = flat.as_strided(table.size(), table.stride(), table.storage_offset())
    place.copy_(torch.from_numpy(rows if axis == 0 else rows.T))
    return flat


def _other(t: Tensor, twin: Mapping[int, Tensor]) -> Tensor:
    flat = twin.get(_storage(t)) if t.layout is torch.strided else None
    if flat is None or flat.dtype != t.dtype:
        return t
    return flat.as_strided(t.size(), t.stride(), t.storage_offset())


def _flat(logits: Tensor) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = logits.detach().flatten(0, -2).float().cpu().numpy()
    return found
