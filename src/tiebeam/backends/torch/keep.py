"""Leaving a model as it was: what its forward writes, swaps or switches is put back."""

from collections.abc import Iterable, Sequence
from operator import is_not
from typing import Any

import torch
from torch import nn

from tiebeam.backends.torch.ledger import Ledger
from tiebeam.backends.torch.names import Names


class Keeper:
    """Remembers a model before the pass; `restore` puts it back, also after a failure.

    Elements are cloned only when an operation is about to write them; a sparse tensor is known by its values'
    memory. Modules whose wrapper swaps parameters
    itself (offloading, sharding: `swapped`) are left to it.
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
        self._modes = [(m, m.training) for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        self.swapped = any("_hf_hook" in vars(m) or hasattr(type(m), "_get_fsdp_state") for m in modules)
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (table, dict(table)) for m, _ in self._modes for table in (m._parameters, m._buffers)
        ]
        parameters = names.owned()
        self._asked = [(p, p.requires_grad) for p in parameters]
        self._data: list[tuple[nn.Parameter, torch.Tensor]] = []
        for t in [*names.held.values(), *names.loose, *inputs]:
            storage = ledger.storage(t)
            if storage is not None:
                self._storages.setdefault(storage.key, []).append(t)
            else:
                self._whole[_memory(t)] = t
        if not self.swapped:
            self._data = [(p, p.detach()) for p in parameters if type(p) is nn.Parameter and p.layout == torch.strided]

    def before_write(self, t: torch.Tensor) -> None:
        """Clone what shares a storage with `t`, the first time it is about to be written."""
        storage = self._ledger.storage(t)
        at_stake = self._storages.pop(storage.key, ()) if storage is not None else [self._whole.pop(_memory(t), None)]
        self._clones += [(kept, kept.detach().clone()) for kept in at_stake if kept is not None]

    def restore(self) -> None:
        """Put elements, parameters, buffers and modes back."""
        for module, training in self._modes:
            module.training = training
        for p, asked in self._asked:
            if p.is_leaf and p.requires_grad != asked:
                p.requires_grad_(asked)
        if not self.swapped:
            for table, entries in self._tables:
                if len(table) != len(entries) or any(map(is_not, table.values(), entries.values())):
                    table.clear()
                    table.update(entries)
            for p, data in self._data:
                if p.layout != torch.strided or p.untyped_storage()._cdata != data.untyped_storage()._cdata:
                    p.data = data
        with torch.no_grad():
            for original, before in reversed(self._clones):
                original.copy_(before)


def _memory(t: torch.Tensor) -> int:
    """What tells a tensor without a storage from others: where its values lie, else the object itself."""
    if t.layout == torch.sparse_coo:
        return int(t._values().untyped_storage()._cdata)
    if t.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return int(t.values().untyped_storage()._cdata)
    return id(t)
