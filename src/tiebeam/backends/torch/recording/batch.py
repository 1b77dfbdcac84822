"""Recording in batches: where an operation read and wrote is taken down at once, what lay there is settled later.

Between two kernels the recorder's own code and objects are cold; settled together they cost less. A place,
that is a storage and how a tensor lies in it, stands for one value until something is written: an operation that
writes, or that hands a number to Python, settles all before it. No tensor is held for it, but for those that
`Measures` would hold. What would be another thing later is taken down at once: the module that runs, gradient flags,
numbers, parameters, and what nobody knows yet.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import is_grad_enabled

from tiebeam.backends.torch.recording.ledger import Geometry, Storage, geometry, number_of
from tiebeam.backends.torch.recording.numbers import STREAM
from tiebeam.backends.torch.recording.record import Record, Recorder, Ref, latest_node
from tiebeam.backends.torch.recording.schema import Schema, schema_of

BATCH = 256  # operations that wait at most

_NUMBERS = frozenset((int, float, bool, type(None), torch.dtype, torch.device, torch.layout))  # most other arguments

Place = tuple[Storage, Geometry]


@dataclass(slots=True)
class Waiting:
    """An operation that ran and is not settled.

    Attributes:
        read: Its tensor arguments; the value of each is a `Place` until it is settled.
        made: What it made: where it lies, and the facts of what has one element; None where that is no plain tensor.
        seen: Its arguments and result, where numbers are to be taken from them.
        stream: Its result, where that is of the residual stream.
    """

    schema: Schema
    refs: tuple[Any, ...]
    named: dict[str, Any]
    read: list[Ref]
    where: str
    recorded: bool
    sequence: int
    ordinal: int
    made: list[tuple[Storage, Geometry, dict[str, Any]]] | None
    seen: tuple[Any, Any] | None = None
    stream: torch.Tensor | None = None


class BatchRecorder(Recorder):
    """A recorder for models that hold real tensors and do not swap their parameters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: list[Waiting] = []
        self._made: set[int] = set()  # keys of the storages of what waits
        self._stream: deque[Waiting] = deque()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = schema_of(func)
        if not schema.reads_alone:
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        read: list[Ref] = []
        try:
            refs = self._taken(args, read)
            named = {k: self._taken((v,), read)[0] for k, v in kwargs.items()} if kwargs else {}
        except (NotImplementedError, RuntimeError, ValueError):  # a tensor without a storage
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        where, recorded, sequence, ordinal = self.modules[-1], is_grad_enabled(), latest_node(), self.ran
        self.ran += schema.name != "detach"  # how often a tensor is detached depends on who looks on
        out = func(*args, **kwargs) if kwargs else func(*args)
        if schema.name == "clone":
            self.resolve(args[0], out)
        made = self._lay(out)
        waiting = Waiting(schema, refs, named, read, where, recorded, sequence, ordinal, made)
        self._waiting.append(waiting)
        if made is None or self.measures.concerns(schema, args, out):
            waiting.seen = args, out
            self.settle()
        else:
            self._hold(waiting, out)
            if len(self._waiting) >= BATCH:
                self.settle()
        return out

    def __exit__(self, kind: Any, error: Any, trail: Any) -> None:
        super().__exit__(kind, error, trail)  # type: ignore[no-untyped-call]
        if kind is None:
            self.settle()

    def _taken(self, args: Any, read: list[Ref]) -> tuple[Any, ...]:
        """Arguments with a `Ref` for each tensor, whose value is found now where it may be another thing later."""
        refs: list[Any] = []
        storages, objects, made = self.ledger.storages, self.ledger.objects, self._made
        for a in args:
            kind = type(a)
            if kind in _NUMBERS:
                refs.append(a)
            elif isinstance(a, torch.Tensor):
                value: Any = None
                if kind is torch.Tensor:
                    # The memory of a value: nobody has to be asked what lies there.
                    storage = storages.get(a.untyped_storage()._cdata)
                    if storage is not None and (storage.key in made or storage.values) and id(a) not in objects:
                        value = storage, geometry(a)
                attached = a.requires_grad or (bool(self.resolved) and self.written_out(a))
                ref = Ref(self._value(a) if value is None else value, attached if self.autograd else None)
                read.append(ref)
                refs.append(ref)
            elif isinstance(a, (list, tuple)):
                refs.append(self._taken(a, read))
            else:
                refs.append(a)
        return tuple(refs)

    def _value(self, t: torch.Tensor) -> int:
        """The value of a tensor now; what made its memory comes first."""
        storage = self.ledger.storage(t)
        if storage is not None and storage.key in self._made:
            self.settle()
        return self.ledger.value(t)

    def _lay(self, out: Any) -> list[tuple[Storage, Geometry, dict[str, Any]]] | None:
        """Where each tensor lies that an operation made, and its number; None where it is no plain tensor."""
        made: list[tuple[Storage, Geometry, dict[str, Any]]] = []
        for t in (out,) if isinstance(out, torch.Tensor) else out if type(out) in (list, tuple) else (None,):
            if type(t) is torch.Tensor and t.layout is torch.strided:
                storage = self.ledger.storage_at(t, t.untyped_storage()._cdata)
                self._made.add(storage.key)
                made.append((storage, geometry(t), number_of(t) if t.numel() == 1 else {}))
            elif type(t) is not int:
                return None
        return made

    def _hold(self, waiting: Waiting, out: Any) -> None:
        """Keep a result of the residual stream; of those that wait only as many as `Measures` holds."""
        first = self.measures.of_stream(out)
        if first is None or _alias(waiting):  # what is no step of the stream takes no step's place
            return
        waiting.stream = first
        self._stream.append(waiting)
        if len(self._stream) > STREAM:
            self._stream.popleft().stream = None

    def settle(self) -> None:
        """Find the values of all that waits, in the order in which it ran."""
        waiting, self._waiting = self._waiting, []
        self._made.clear()
        self._stream.clear()
        for w in waiting:
            self._settle(w)

    def _settle(self, w: Waiting) -> None:
        ledger = self.ledger
        for ref in w.read:
            if type(ref.value) is not int:
                ref.value = ledger.value_at(*ref.value)
        read = [ref.value for ref in w.read]
        self.write_down_implied()
        if w.made is None:
            outputs = self._outputs(w.schema, read, w.seen[1] if w.seen else None, ())
        elif all(storage.fresh(g) in read for storage, g, _ in w.made):
            return  # a pure alias: detach, alias, lift_fresh, expand to the same shape
        else:
            origin, varying = self._came_from(w.schema, read)
            outputs = tuple(
                [ledger.fresh(storage, g, origin, varying, {} if varying else facts) for storage, g, facts in w.made]
            )
        if not outputs:
            return
        record = Record(w.schema, w.refs, w.named, outputs, w.where, w.recorded, w.sequence, w.ordinal)
        if w.seen is not None:
            with torch.no_grad():
                self.write_down(record, *w.seen)
            return
        self.records.append(record)
        if w.stream is not None:
            self.measures.flow(outputs[0], w.stream)


def _alias(w: Waiting) -> bool:
    """Whether what an operation made lies where something lay that it read."""
    read = [ref.value for ref in w.read]
    places = [v for v in read if type(v) is not int]
    return all(
        storage.fresh(g) in read or any(storage is s and g == p for s, p in places) for storage, g, _ in w.made or ()
    )
