"""Recording in batches: what operations read and made is settled some dozens at a time.

Between two kernels the recorder's own code and objects are cold; together they are settled in half the time. What
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


class SwappedError(RefusedError):
    """A tensor's memory was exchanged (`.data = `) while operations on it waited."""


@dataclass(slots=True)
class Waiting:
    """An operation that ran and is not settled.

    Attributes:
        read: Its tensor arguments; the value of each is a tensor until it is settled.
        addresses: Where the storages of those tensors, and then of `out`, were.
    """

    schema: Schema
    args: tuple[Any, ...]
    refs: tuple[Any, ...]
    named: dict[str, Any]
    read: list[Ref]
    addresses: list[int]
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
        addresses: list[int] = []
        try:
            refs = self._taken(args, read, addresses)
            named = {k: self._taken((v,), read, addresses)[0] for k, v in kwargs.items()} if kwargs else {}
        except (NotImplementedError, RuntimeError, ValueError):  # a tensor without a storage
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        waiting = Waiting(
            schema, args, refs, named, read, addresses,
            self.modules[-1], torch.is_grad_enabled(), latest_node(), self.ran, None,
        )  # fmt: skip
        self.ran += schema.name != "detach"  # how often a tensor is detached depends on who looks on
        waiting.out = out = func(*args, **kwargs) if kwargs else func(*args)
        self._waiting.append(waiting)
        if type(out) is torch.Tensor and out.layout is torch.strided:
            address = out.untyped_storage()._cdata
            addresses.append(address)
            if address not in self._made and address not in self.ledger.storages:  # no view
                self._made.add(address)
                self._bytes += out.nbytes
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

    def _taken(self, args: Any, read: list[Ref], addresses: list[int]) -> tuple[Any, ...]:
        """Arguments with a `Ref` for each tensor, whose value is found now where it may be another thing later."""
        refs: list[Any] = []
        ledger = self.ledger
        for a in args:
            kind = type(a)
            if kind is torch.Tensor:
                address = a.untyped_storage()._cdata
                known = address in self._made or address in ledger.storages
                known = known and id(a) not in ledger.objects
                ref = Ref(a if known else ledger.value(a), a.requires_grad if self.autograd else None)
                addresses.append(address)
                read.append(ref)
                refs.append(ref)
            elif kind in _NUMBERS:
                refs.append(a)
            elif isinstance(a, torch.Tensor):
                ref = Ref(ledger.value(a), a.requires_grad if self.autograd else None)
                addresses.append(0)
                read.append(ref)
                refs.append(ref)
            elif isinstance(a, (list, tuple)):
                refs.append(self._taken(a, read, addresses))
            else:
                refs.append(a)
        return tuple(refs)

    def settle(self) -> None:
        """Find the values of all that waits, in the order in which it ran."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self._made.clear()
        self._bytes = 0
        with torch.no_grad():
            for w in waiting:
                self._settle(w)

    def _settle(self, w: Waiting) -> None:
        values: list[int] = []
        for ref, address in zip(w.read, w.addresses, strict=False):  # the last may be the result's
            if type(ref.value) is not int:
                self._swapped |= ref.value.untyped_storage()._cdata != address
                ref.value = self.ledger.value(ref.value)
            values.append(ref.value)
        self.write_down_implied()
        out = w.out
        if len(w.addresses) > len(w.read):
            self._swapped |= out.untyped_storage()._cdata != w.addresses[-1]
            outputs = self._plain_output(w.schema, values, out)
        else:
            outputs = self._outputs(w.schema, values, out, ())
        if outputs:
            self.write_down(
                Record(w.schema, w.refs, w.named, outputs, w.where, w.recorded, w.sequence, w.ordinal), w.args, out
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
