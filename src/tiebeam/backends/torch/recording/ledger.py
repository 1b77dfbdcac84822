"""Values of the pass: a tensor is known by its storage, what was written to it, and its geometry.

Every write is logged, so a stale view is never mistaken for what was written: it is renewed by the writes it
missed. Storages are held weakly: the ledger keeps no activation alive, and a weak reference keeps the address from
being reused.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tiebeam.backends.torch.names import Names
from tiebeam.backends.torch.parts import sharded
from tiebeam.ir import Leaf, Origin

VECTOR = 1 << 16  # elements of a vector whose uniformity is looked at
PLAIN = (torch.Tensor, torch.nn.Parameter)

Geometry = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


def geometry(t: torch.Tensor) -> Geometry:
    """Offset, shape, strides and dtype."""
    return int(t.storage_offset()), t.shape, t.stride(), t.dtype


def storage_of(t: torch.Tensor) -> torch.UntypedStorage | None:
    """The memory that a tensor lies in; None where it has none of its own."""
    try:
        return t.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, nested, opaque, not yet materialised
        return None


def span(g: Geometry) -> tuple[int, int]:
    """First and past-the-last element that a geometry can touch."""
    offset, shape, stride, _ = g
    if 0 in shape:
        return offset, offset
    last = offset
    for n, s in zip(shape, stride, strict=True):
        last += (n - 1) * s
    return offset, last + 1


def order(g: Geometry) -> list[int]:
    """Which elements a geometry goes through, and in which order: equal for views that only cut axes differently."""
    offset, shape, stride, _ = g
    runs = [offset]  # then a size and a stride each
    for n, s in zip(shape, stride, strict=True):
        if n == 1:
            continue
        if len(runs) > 1 and runs[-1] == n * s:
            runs[-2:] = runs[-2] * n, s
        else:
            runs += (n, s)
    return runs


def uniform_number(t: torch.Tensor) -> float | None:
    """The number that all elements of a vector equal, or None."""
    if not 1 < t.numel() == max(t.shape, default=0) <= VECTOR or not t.is_floating_point() or type(t) not in PLAIN:
        return None
    if t.device.type == "meta":
        return None
    with _disable_current_modes():
        low, high = torch.aminmax(t.detach())
        return float(low) if bool(low == high) else None


def number_of(t: torch.Tensor) -> dict[str, Any]:
    """The element of a one-element tensor as facts of a draft: its number, or that it is lost."""
    if t.numel() != 1 or t.is_complex():
        return {}
    if t.device.type == "meta":
        return {"lost": True}
    try:
        with _disable_current_modes():  # a fake mode further out refuses real tensors
            return {"number": float(t.detach())}
    except (NotImplementedError, RuntimeError):  # fake and quantised tensors have no elements to read
        return {"lost": True}


@dataclass(slots=True)
class Draft:
    """A value in the making: `ir.Value` with its geometry."""

    geometry: Geometry
    origin: Origin
    leaf: Leaf | None = None
    number: float | None = None
    lost: bool = False
    varying: bool = False  # an input or a random number reached it
    storage: int = -1  # key of the one that it lies in; -1: none, or none that matters


class Storage:
    """One storage: the value of each of its views, and every write to it in order.

    Attributes:
        key: Its ordinal.
        address: Where it is found.
        values: By geometry the value, and how many writes it has seen.
        log: What was written: geometry and value.
    """

    __slots__ = ("address", "key", "log", "values")

    def __init__(self, key: int, address: int) -> None:
        self.key = key
        self.address = address
        self.values: dict[Geometry, tuple[int, int]] = {}
        self.log: list[tuple[Geometry, int]] = []

    def fresh(self, g: Geometry) -> int | None:
        """The value of a view that no later write can have touched, or None."""
        entry = self.values.get(g)
        return entry[0] if entry is not None and entry[1] == len(self.log) else None


@dataclass(frozen=True, slots=True)
class Implied:
    """A view or an update that no recorded operation made (`.data`, a write seen through another view)."""

    kind: str  # "view" or "update"
    sources: tuple[int, ...]
    output: int


class Ledger:
    """Hands out value ids."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.drafts: list[Draft] = []
        self.storages: dict[int, Storage] = {}
        self.objects: dict[int, tuple[int, Storage, int]] = {}
        self.loose: dict[int, tuple[int, torch.Tensor]] = {}  # tensors without a storage, held
        self.shards: dict[int, int] = {}  # by storage key of what this process holds: the sharded tensor's value
        self.leaves: dict[str, Leaf] = {}
        self.implied: list[Implied] = []
        self.tensors: dict[int, torch.Tensor] = {}  # leaves by value: which one is asked for is known later
        self._held: list[int] = []  # `StorageWeakRef` is such a number in an object of its own: thousands are made

    _free = staticmethod(torch.UntypedStorage._free_weak_ref)  # found also when the interpreter ends

    def __del__(self) -> None:
        for held in self._held:
            self._free(held)

    def hold(self, raw: torch.UntypedStorage) -> None:
        """Keep a storage's address from being used again, and not what lies there."""
        held: Any = raw._weak_ref()
        self._held.append(held)

    def storage(self, t: torch.Tensor) -> Storage | None:
        raw = storage_of(t)
        return None if raw is None else self.storage_at(raw)

    def storage_at(self, raw: torch.UntypedStorage) -> Storage:
        """What is known of a tensor's storage."""
        found = self.storages.get(raw._cdata)
        if found is None:
            self.hold(raw)
            found = self.at(raw._cdata)
        return found

    def at(self, address: int) -> Storage:
        """What is known of the storage that is held there."""
        found = self.storages.get(address)
        if found is None:
            found = self.storages[address] = Storage(len(self.storages), address)
        return found

    def add(self, g: Geometry, origin: Origin, **facts: Any) -> int:
        self.drafts.append(Draft(g, origin, **facts))
        return len(self.drafts) - 1

    def value(self, t: torch.Tensor) -> int:
        """Id of the value that `t` holds now."""
        storage = self.storage(t)
        if storage is None:
            return self._loose(t)
        held = self.objects.get(id(t))
        if held is not None and held[1] is storage and held[2] == len(storage.log):
            return held[0]
        if held is None and isinstance(t, torch.nn.Parameter):
            names = self.names.of(t) or self.names.look_again(t)
            if names or not storage.values:
                return self._leaf(t, storage, names, geometry(t), t.requires_grad)
        g = geometry(t)
        known = storage.fresh(g)
        if known is not None and type(t) is torch.Tensor and self.drafts[known].leaf is None:
            return known  # an activation: by far the most common
        if storage.values:
            return self.value_at(storage, g)
        names = self.names.of(t)
        if not names and t.ndim >= 2 and not isinstance(t, torch.nn.Parameter):
            names = self.names.look_again(t)
        return self._leaf(t, storage, names, g, t.requires_grad)

    def value_at(self, storage: Storage, g: Geometry) -> int:
        """Id of the value that lies there now, in memory that holds some."""
        known = storage.fresh(g)
        if known is not None:
            return known
        return self._renewed(storage, g) if g in storage.values else self._derived(storage, g)

    def own(self, storage: Storage, g: Geometry, t: torch.Tensor, trainable: bool, facts: dict[str, Any]) -> int:
        """Id of the value of one of the model's own parameters that lay there, and held that, when it was used."""
        held = self.objects.get(id(t))
        if held is not None and held[1] is storage and held[2] == len(storage.log):
            return held[0]
        if held is not None and storage.values:  # it has been lent other memory, or was written to
            return self.value_at(storage, g)
        return self._leaf(t, storage, self.names.of(t), g, trainable, facts)

    def place(self, t: torch.Tensor) -> tuple[Storage | None, Geometry]:
        """Where a tensor lies."""
        storage = self.storage(t)
        return (None, (0, t.shape, (), t.dtype)) if storage is None else (storage, geometry(t))

    def output(
        self,
        t: torch.Tensor,
        place: tuple[Storage | None, Geometry],
        origin: Origin,
        varying: bool,
        *,
        written: bool = False,
        **facts: Any,
    ) -> int:
        """A new value for what an operation made, or wrote, or the caller passed."""
        storage, g = place
        value = len(self.drafts)
        self.drafts.append(Draft(g, origin, varying=varying, storage=-1 if storage is None else storage.key, **facts))
        if type(t) not in PLAIN:
            self._sharded(t, value)
        if storage is None:
            self.loose[id(t)] = (value, t)
            return value
        if written:
            storage.log.append((g, value))
        storage.values[g] = (value, len(storage.log))
        return value

    def fresh(self, storage: Storage, g: Geometry, origin: Origin, varying: bool, facts: dict[str, Any]) -> int:
        """`output` of a plain tensor that nothing was written to."""
        value = len(self.drafts)
        self.drafts.append(Draft(g, origin, varying=varying, storage=storage.key, **facts))
        storage.values[g] = (value, len(storage.log))
        return value

    def _leaf(
        self,
        t: torch.Tensor,
        storage: Storage,
        names: tuple[str, ...],
        g: Geometry,
        trainable: bool,
        facts: dict[str, Any] | None = None,
    ) -> int:
        is_parameter = isinstance(t, torch.nn.Parameter) or id(t) in self.names.parameters
        other_side = None if names or is_parameter else self._other_side(t, storage)
        if other_side is not None:
            value = self._implied("view", (other_side,), g)
        elif not names and not is_parameter:
            value = self.add(g, Origin.CONSTANT, **number_of(t))
        else:
            leaf = None
            for name in names:
                leaf = leaf or self.leaves.get(name)
            if leaf is None:
                fetched = id(t) not in self.names.residents
                leaf = Leaf(names, len(self.drafts), storage.key, span(g), trainable, is_parameter, fetched)
            for name in names:
                self.leaves[name] = leaf
            value = self.add(g, Origin.LEAF, leaf=leaf, **(number_of(t) if facts is None else facts))
        if names or is_parameter:
            self.names.held[id(t)] = t
            self.objects[id(t)] = (value, storage, len(storage.log))
            self.tensors[value] = t
        if type(t) not in PLAIN:
            self._sharded(t, value)
        storage.values.setdefault(g, (value, len(storage.log)))
        return value

    def _sharded(self, t: torch.Tensor, value: int) -> None:
        """Remember what this process holds of a sharded tensor: nobody records that it is taken out."""
        if sharded(t):
            held = self.storage(t._local_tensor)
            if held is not None:
                self.shards[held.key] = value

    def _other_side(self, t: torch.Tensor, storage: Storage) -> int | None:
        """What an unknown tensor was taken out of, or wrapped around: shards and wholes turn into each other unseen."""
        if type(t) in PLAIN:
            return self.shards.get(storage.key)
        if not sharded(t):
            return None
        held = self.storage(t._local_tensor)
        return self.value(t._local_tensor) if held is not None and held.values else None

    def _loose(self, t: torch.Tensor) -> int:
        if id(t) not in self.loose:
            names = self.names.of(t)
            leaf = Leaf(names, len(self.drafts), -1, (0, 0), t.requires_grad, True) if names else None
            origin = Origin.LEAF if names else Origin.CONSTANT
            self.loose[id(t)] = (self.add((0, t.shape, (), t.dtype), origin, leaf=leaf), t)
        return self.loose[id(t)][0]

    def _renewed(self, storage: Storage, g: Geometry) -> int:
        """The value of a known view after what was written since through other views."""
        value, seen = storage.values[g]
        for written, new in storage.log[seen:]:
            if written == g:
                value = new
            elif _covers(written, g):
                value = self._implied("view", (new,), g)
            elif _meet(written, g):
                value = self._implied("update", (value, new), g)
        storage.values[g] = (value, len(storage.log))
        return value

    def _derived(self, storage: Storage, g: Geometry) -> int:
        """A view that nobody recorded making (`.data` and friends), of one that is known."""
        known = list(storage.values)
        source = next((k for k in known if _covers(k, g)), None) or next((k for k in known if _meet(k, g)), known[0])
        value = self._implied("view", (self._renewed(storage, source),), g)
        storage.values[g] = (value, len(storage.log))
        return value

    def _implied(self, kind: str, sources: tuple[int, ...], g: Geometry) -> int:
        varying = any(self.drafts[v].varying for v in sources)
        value = self.add(g, Origin.NODE, varying=varying, storage=self.drafts[sources[0]].storage)
        self.implied.append(Implied(kind, sources, value))
        return value


def _covers(a: Geometry, b: Geometry) -> bool:
    """Whether `a` holds every element of a stretch that `b` lies in."""
    (low, high), (first, last) = span(a), span(b)
    elements = 1
    for n in a[1]:
        elements *= n
    return low <= first and last <= high and elements == high - low


def _meet(a: Geometry, b: Geometry) -> bool:
    """Whether two views may have elements in common."""
    (low, high), (first, last) = span(a), span(b)
    return low < last and first < high
