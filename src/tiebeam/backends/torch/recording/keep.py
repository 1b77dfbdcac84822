"""Leaving a model as it was: what its forward writes, swaps or switches is put back."""

from collections.abc import Iterable, Sequence
from operator import is_not
from typing import Any

import torch
from torch import nn

from tiebeam.backends.torch.names import Names
from tiebeam.backends.torch.parts import sharded
from tiebeam.backends.torch.recording.ledger import PLAIN, Geometry, Ledger, geometry

_SESSION = "tiebeam.backends.torch.session"


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
        self._modes = [(m, m.training) for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        self.swapped = any("_hf_hook" in vars(m) or hasattr(type(m), "_get_fsdp_state") for m in modules)
        # Whole and shard turn into each other out of sight: each is looked at in turn.
        self.steady = not self.swapped and not any(sharded(t) for t in names.held.values() if type(t) not in PLAIN)
        self._parts: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (table, dict(table)) for m, _ in self._modes for table in (m._parameters, m._buffers, m._modules, vars(m))
        ]
        tensors: list[torch.Tensor] = [*names.held.values(), *names.loose, *inputs]
        self._asked = [(t, t.requires_grad) for t in tensors]
        self._grads = [(p, p.grad) for p in names.owned()]
        self._data: list[tuple[torch.Tensor, torch.Tensor]] = []
        for t in [*tensors, *(g for _, g in self._grads if g is not None)]:
            storage = ledger.storage(t)
            if storage is not None:
                self._storages.setdefault(storage.key, []).append(t)
            else:
                self._whole[_memory(t)] = t
        if not self.swapped:
            self._data = [(t, t.detach()) for t in tensors if type(t) in PLAIN and t.layout == torch.strided]

        self._hooks = [
            (table, dict(table)) for m, _ in self._modes for table in (m._forward_pre_hooks, m._forward_hooks)
        ]

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
            if t.requires_grad and not asked and not t.is_leaf and not t._is_view():  # a part of the pass' own graph
                t.detach_()
            elif t.is_leaf and t.requires_grad != asked:
                with torch.inference_mode(t.is_inference()):
                    t.requires_grad_(asked)
        for p, grad in self._grads:
            if p.grad is not grad:
                p.grad = grad

    def _restore_parts(self) -> None:
        for table, entries in self._parts:
            if _other(table, entries):
                for name in [n for n in [*table] if n not in entries]:
                    table.pop(name, None)
                table.update(entries)  # never empty in between: another thread may be running the model
                if list(table) != list(entries):
                    table.clear()
                    table.update(entries)
        for hooks, before in self._hooks:
            if (hooks or before) and hooks.keys() != before.keys():
                _put_back(hooks, before)
        for t, data in self._data:
            if t.layout != torch.strided or _lies(t) != _lies(data):
                t.data = data


def _other(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a registry holds other entries than before."""
    return len(now) != len(before) or any(map(is_not, now, before)) or any(map(is_not, now.values(), before.values()))


def _put_back(hooks: dict[int, Any], before: dict[int, Any]) -> None:
    """Undo what the forward did to hooks; those of another thread's pass come and go by themselves."""
    for key, hook in [*hooks.items()]:
        if key not in before and getattr(hook, "__module__", "") != _SESSION:
            hooks.pop(key, None)
    for key, hook in before.items():
        if key not in hooks and getattr(hook, "__module__", "") != _SESSION:
            hooks[key] = hook


def _lies(t: torch.Tensor) -> tuple[int, Geometry]:
    return t.untyped_storage()._cdata, geometry(t)


def _memory(t: torch.Tensor) -> int:
    """What tells a tensor without a storage from others: where its values lie, else the object itself."""
    if t.layout == torch.sparse_coo:
        return int(t._values().untyped_storage()._cdata)
    if t.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return int(t.values().untyped_storage()._cdata)
    return id(t)
