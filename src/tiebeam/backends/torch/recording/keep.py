"""Leaving a model as it was: what its forward writes, swaps or switches is put back."""

from collections.abc import Iterable, Iterator, Sequence
from operator import is_not
from typing import Any

import torch
from torch import nn

from tiebeam.backends.torch.names import Names
from tiebeam.backends.torch.parts import sharded
from tiebeam.backends.torch.recording.ledger import PLAIN, Geometry, Ledger, geometry, storage_of
from tiebeam.backends.torch.recording.paths import Pass


class Keeper:
    """Remembers a model before the pass; `restore` puts it back, also after a failure.

    Elements are cloned only when an operation is about to write them; a sparse tensor is known by its values'
    memory. What a model does to itself (makes a part, takes another kind of attention for short inputs, divides its
    weights once, hooks) it notes in attributes, of other modules too: they are put back as well. Modules whose
    wrapper swaps parameters itself (offloading, sharding: `swapped`) are left to it.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        names: Names,
        ledger: Ledger,
        inputs: Iterable[torch.Tensor],
    ) -> None:
        self._ledger = ledger
        self._storages: dict[int, list[torch.Tensor]] = {}
        self._whole: dict[int, torch.Tensor] = {}  # what has no storage of its own
        self._clones: list[tuple[torch.Tensor, torch.Tensor]] = []
        kinds = set(map(type, modules))
        scripts = tuple(kind for kind in kinds if issubclass(kind, torch.jit.ScriptModule))
        own = [m for m in modules if type(m) not in scripts] if scripts else modules
        self._modes = [(m, m.training) for m in own]
        fully_sharded = any(hasattr(kind, "_get_fsdp_state") for kind in kinds)
        self.swapped = fully_sharded or any("_hf_hook" in vars(m) for m in own)
        # Whole and shard turn into each other out of sight: each is looked at in turn.
        self.steady = not self.swapped and not any(sharded(t) for t in names.held.values() if type(t) not in PLAIN)
        self._parts = [] if self.swapped else [part for m in own for part in _parts(m)]
        self._grads = [(p, p.grad) for p in names.owned()]
        tensors: list[torch.Tensor] = [*names.held.values(), *names.loose, *inputs]
        self._asked = [(t, t.requires_grad) for t in tensors]
        self._data: list[tuple[torch.Tensor, torch.UntypedStorage, int, Geometry, torch.Tensor | None]] = []
        for t in tensors:
            raw = self._remember(t)
            if raw is not None and not self.swapped and type(t) in PLAIN and t.layout is torch.strided:
                g = geometry(t)
                more = g[3] in _MORE or t.is_inference() or t.is_neg()
                self._data.append((t, raw, raw._cdata, g, t.detach() if more else None))
        for _, grad in self._grads:
            if grad is not None:
                self._remember(grad)

    def _remember(self, t: torch.Tensor) -> torch.UntypedStorage | None:
        """Note what shares memory; the storage, where there is one."""
        raw = storage_of(t)
        if raw is None:
            self._whole[_memory(t)] = t
        else:
            self._storages.setdefault(self._ledger.storage_at(raw).key, []).append(t)
        return raw

    def before_write(self, t: torch.Tensor) -> None:
        """Clone what shares a storage with `t`, the first time it is about to be written."""
        storage = self._ledger.storage(t)
        at_stake = self._storages.pop(storage.key, ()) if storage is not None else [self._whole.pop(_memory(t), None)]
        self._clones += [(kept, kept.detach().clone()) for kept in at_stake if kept is not None]

    def restore(self) -> None:
        """Put elements, parameters, buffers and modes back."""
        for module, training in self._modes:
            if module.training is not training:  # to set it costs ten times as much as to look
                module.training = training
        self._restore_gradients()
        if not self.swapped:
            self._restore_parts()
        for original, before in reversed(self._clones):
            with torch.inference_mode(original.is_inference()), torch.no_grad():  # else it takes no writes
                original.copy_(before)

    def _restore_gradients(self) -> None:
        for t, asked in self._asked:
            if t.requires_grad is asked:
                continue
            if not asked and not t.is_leaf and not t._is_view():  # a part of the pass' own graph
                t.detach_()
            elif t.is_leaf:
                with torch.inference_mode(t.is_inference()):
                    t.requires_grad_(asked)
        for p, grad in self._grads:
            if p.grad is not grad:
                p.grad = grad

    def _restore_parts(self) -> None:
        for table, entries in self._parts:
            if (table or entries) and _other(table, entries):
                _put_back(table, entries)
        for t, raw, address, g, alias in self._data:
            elsewhere = t.layout is not torch.strided or t.untyped_storage()._cdata != address or geometry(t) != g
            if elsewhere or (alias is not None and t.is_conj() is not alias.is_conj()):
                t.data = _laid(raw, g) if alias is None else alias


#: Of these, of inference tensors and of negated views memory and geometry do not tell all: an alias of each is kept.
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_QUANTISED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
_MORE = frozenset((*_COMPLEX, *_QUANTISED))


def _laid(raw: torch.UntypedStorage, g: Geometry) -> torch.Tensor:
    """A plain tensor in that memory, whatever mode the caller is in."""
    offset, shape, stride, dtype = g
    with torch.inference_mode(False):
        return torch.empty(0, dtype=dtype, device=raw.device).set_(raw, offset, shape, stride)


_NONE: dict[Any, Any] = {}


def _parts(module: nn.Module) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Attributes, registries and hooks of a module, and what they hold now: most hold nothing."""
    for table in (
        vars(module),
        module._parameters,
        module._buffers,
        module._modules,
        module._forward_pre_hooks,
        module._forward_hooks,
    ):
        yield table, dict(table) if table else _NONE


def _other(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether a registry holds other entries than before."""
    return len(now) != len(before) or any(map(is_not, now, before)) or any(map(is_not, now.values(), before.values()))


def _put_back(table: dict[Any, Any], entries: dict[Any, Any]) -> None:
    """Never empty in between, if it can be helped: another thread may be running the model, or a pass over it."""
    passing = {name: hook for name, hook in [*table.items()] if type(name) is Pass}
    entries = {name: held for name, held in entries.items() if type(name) is not Pass}
    for name in [n for n in [*table] if n not in entries and n not in passing]:
        table.pop(name, None)
    table.update(entries)
    if [n for n in [*table] if n not in passing] != [*entries]:
        table.clear()
        table.update({**entries, **passing})


def _memory(t: torch.Tensor) -> int:
    """What tells a tensor without a storage from others: where its values lie, else the object itself."""
    if t.layout == torch.sparse_coo:
        return int(t._values().untyped_storage()._cdata)
    if t.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return int(t.values().untyped_storage()._cdata)
    return id(t)
