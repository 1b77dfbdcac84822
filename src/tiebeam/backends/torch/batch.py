"""Recording in batches: what operations read and made is settled some dozens at a time.

Between two kernels the recorder's own code and objects are cold; settled together they cost less. What
would be another thing later is taken down at once: the module that runs, gradient flags, parameters, and what nobody
knows yet. An operation that writes, or that hands a number to Python, settles all before it.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tiebeam.backends.protocol import RefusedError
from tiebeam.backends.torch.ledger import number_of
from tiebeam.backends.torch.record import Record, Recorder, Ref, latest_node
from tiebeam.backends.torch.schema import Schema, schema_of

BATCH = 64  # operations that wait at most, and
HELD = 1 << 26  # bytes that their results may have

_NUMBERS = frozenset((int, float, bool, type(None), torch.dtype, torch.device, torch.layout))  # most other arguments


Place = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]


def _place(t: torch.Tensor) -> Place:
    """Which memory a tensor holds, how much of it there is, and how the tensor lies in it."""
    storage = t.untyped_storage()
    return storage._cdata, storage.nbytes(), int(t.storage_offset()), t.shape, t.stride()


class SwappedError(RefusedError):
    """A tensor's memory was exchanged (`.data = `) or given back while operations on it waited."""


@dataclass(slots=True)
class Waiting:
    """An operation that ran and is not settled.

    Attributes:
        read: Its tensor arguments; the value of each is a tensor until it is settled.
        places: Where those tensors lay whose values were not asked for at once, and then `out`.
    """

    schema: Schema
    args: tuple[Any, ...]
    refs: tuple[Any, ...]
    named: dict[str, Any]
    read: list[Ref]
    places: list[Place | None]
    where: str
    recorded: bool
    sequence: int
    ordinal: int
    out: Any


class BatchRecorder(Recorder):
    """A recorder for models that hold real tensors and do not swap their parameters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: list[Waiting] = []
        self._made: set[int] = set()  # addresses of what waits
        self._bytes = 0
        self._swapped = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = schema_of(func)
        if not schema.reads_alone:
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        read: list[Ref] = []
        places: list[Place | None] = []
        try:
            refs = self._taken(args, read, places)
            named = {k: self._taken((v,), read, places)[0] for k, v in kwargs.items()} if kwargs else {}
        except (NotImplementedError, RuntimeError, ValueError):  # a tensor without a storage
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        waiting = Waiting(
            schema, args, refs, named, read, places,
            self.modules[-1], torch.is_grad_enabled(), latest_node(), self.ran, None,
        )  # fmt: skip
        self.ran += schema.name != "detach"  # how often a tensor is detached depends on who looks on
        waiting.out = out = func(*args, **kwargs) if kwargs else func(*args)
        self._waiting.append(waiting)
        if type(out) is torch.Tensor and out.layout is torch.strided:
            place = _place(out)
            places.append(place)
            if place[0] not in self._made and place[0] not in self.ledger.storages:  # no view
                self._made.add(place[0])
                self._bytes += place[1]
            if len(self._waiting) < BATCH and self._bytes < HELD:
                return out
        self.settle()
        return out

    def __exit__(self, kind: Any, error: Any, trail: Any) -> None:
        super().__exit__(kind, error, trail)  # type: ignore[no-untyped-call]
        if kind is not None:
            return
        self.settle()
        if self._swapped:  # said here: the model may catch what an operation raises
            raise SwappedError

    def _taken(self, args: Any, read: list[Ref], places: list[Place | None]) -> tuple[Any, ...]:
        """Arguments with a `Ref` for each tensor, whose value is found now where it may be another thing later."""
        refs: list[Any] = []
        for a in args:
            kind = type(a)
            if kind is torch.Tensor:
                place = _place(a)
                waits = self._may_wait(a, place[0])
                ref = Ref(a if waits else self._value(a, place[0]), a.requires_grad if self.autograd else None)
                places.append(place if waits else None)
                read.append(ref)
                refs.append(ref)
            elif kind in _NUMBERS:
                refs.append(a)
            elif isinstance(a, torch.Tensor):
                ref = Ref(self._value(a, a.untyped_storage()._cdata), a.requires_grad if self.autograd else None)
                places.append(None)
                read.append(ref)
                refs.append(ref)
            elif isinstance(a, (list, tuple)):
                refs.append(self._taken(a, read, places))
            else:
                refs.append(a)
        return tuple(refs)

    def _may_wait(self, t: torch.Tensor, address: int) -> bool:
        """Whether the memory is that of a value, so that nobody has to be asked what the tensor is."""
        if address not in self._made:
            storage = self.ledger.storages.get(address)
            if storage is None or not storage.values:
                return False
        return id(t) not in self.ledger.objects

    def _value(self, t: torch.Tensor, address: int) -> int:
        """The value of a tensor now; what made its memory comes first."""
        if address in self._made:
            self.settle()
        return self.ledger.value(t)

    def settle(self) -> None:
        """Find the values of all that waits, in the order in which it ran."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._made.clear()
        self._bytes = 0
        with torch.no_grad():
            for w in waiting:
                self._swapped = self._swapped or _elsewhere(w)
                if self._swapped:  # what is there now must not be read: it may be gone
                    return
                self._settle(w)

    def _settle(self, w: Waiting) -> None:
        values: list[int] = []
        for ref in w.read:
            if type(ref.value) is not int:
                ref.value = self.ledger.value(ref.value)
            values.append(ref.value)
        self.write_down_implied()
        if len(w.places) > len(w.read):
            outputs = self._plain_output(w.schema, values, w.out)
        else:
            outputs = self._outputs(w.schema, values, w.out, ())
        if outputs:
            self.write_down(
                Record(w.schema, w.refs, w.named, outputs, w.where, w.recorded, w.sequence, w.ordinal), w.args, w.out
            )

    def _plain_output(self, schema: Schema, read: list[int], out: torch.Tensor) -> tuple[int, ...]:
        """`_outputs` of an operation that made one plain tensor, or a view: by far the most."""
        ledger = self.ledger
        storage, g = ledger.place(out)
        if storage is None or (storage.values and storage.fresh(g) in read):
            return ()  # a pure alias: detach, alias, lift_fresh, expand to the same shape
        origin, varying = self._came_from(schema, read)
        value = ledger.fresh(storage, g, origin, varying, {} if varying else number_of(out))
        return (value,)


def _elsewhere(w: Waiting) -> bool:
    """Whether a tensor of an operation that waits lies elsewhere by now."""
    places = w.places
    for i, ref in enumerate(w.read):
        place = places[i]
        if place is not None and _place(ref.value) != place:
            return True
    return len(places) > len(w.read) and _place(w.out) != places[-1]
