"""Recording in batches: where an operation read and wrote is taken down at once, what lay there is settled later.

Between two kernels the recorder's own code and objects are cold, and cost several times what they cost in a row: most
is settled when the pass is over. A place, that is a storage and how a tensor lies in it, stands for one value until
something is written: an operation that writes, or that hands a number to Python, settles all before it. No tensor is
held for it, but for those that `Measures` would hold and the model's own parameters. What would be another thing later
is taken down at once: the module that runs, gradient flags, numbers, and the value of what nobody knows yet.
"""

from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.nn import Parameter

from tiebeam.backends.torch.recording.ledger import Geometry, Storage, geometry, number_of
from tiebeam.backends.torch.recording.numbers import Looked
from tiebeam.backends.torch.recording.record import Record, Recorder, Ref, latest_node
from tiebeam.backends.torch.recording.schema import Schema, schema_of

BATCH = 4096  # operations that wait at most

_NUMBERS = frozenset((int, float, bool, type(None), torch.dtype, torch.device, torch.layout))  # most other arguments
_LISTS = frozenset((list, tuple))
_NOTHING: dict[str, Any] = {}
_STRIDED = torch.strided

#: Where a tensor lies that an operation read; of the model's own parameters also the parameter, whether a gradient was
#: asked for, and the facts of one with one element: what `Ledger.own` takes.
Place = tuple[Storage, Geometry] | tuple[Storage, Geometry, Tensor, bool, dict[str, Any]]

#: What an operation made: where it lies, and the facts of what has one element.
Made = list[tuple[Storage, Geometry, dict[str, Any]]]

#: An operation that ran and is not settled: its schema, arguments, keyword arguments, the tensors among them (the
#: value of each is a `Place` until it is settled), the module, whether gradients were recorded, autograd's latest node,
#: the ordinal, what was made (None where that is no plain tensor), numbers that were taken. A tuple: thousands are
#: made while the model runs.
Waiting = tuple[Schema, list[Any], dict[str, Any], list[Ref], str, bool, int, int, Made | None, Looked | None]


class BatchRecorder(Recorder):
    """A recorder for models that hold real tensors and do not swap their parameters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: list[Waiting] = []
        self._named = frozenset(self.ledger.names.paths)  # tensors whose names nobody has to look for

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = schema_of(func)
        if not schema.reads_alone:
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        read: list[Ref] = []
        try:
            refs = self._taken(args, read)
            named = dict(zip(kwargs, self._taken(kwargs.values(), read), strict=True)) if kwargs else _NOTHING
        except (NotImplementedError, RuntimeError, ValueError):  # a tensor without a storage
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        where, recorded, sequence, ordinal = self.modules[-1], is_grad_enabled(), latest_node(), self.ran
        if schema.name != "detach":  # how often a tensor is detached depends on who looks on
            self.ran = ordinal + 1
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:  # the model may go on without: what it would have read was used all the same
            self._waiting.append((schema, refs, named, read, where, recorded, sequence, ordinal, [], None))
            raise
        if schema.name == "clone":
            self.resolve(args[0], out)
        before = len(self.ledger.storages)
        made = self._lay(out)
        measures, looked = self.measures, None
        if made is None or measures.logits or schema.telling:
            if made is None or measures.concerns(schema):
                self._waiting.append((schema, refs, named, read, where, recorded, sequence, ordinal, made, None))
                self.settle(args, out)
                return out
            looked = measures.look(args, out)
        w = (schema, refs, named, read, where, recorded, sequence, ordinal, made, looked)
        self._waiting.append(w)
        first = measures.of_stream(out)
        # What is no step of the stream takes no step's place; new memory is one.
        if first is not None and (made[0][0].key >= before or not _alias(read, made)):
            measures.flow(w, first)
        if len(self._waiting) >= BATCH:
            self.settle()
        return out

    def _taken(self, args: Any, read: list[Ref]) -> list[Any]:
        """Arguments with a `Ref` for each tensor, whose value is found now where it may be another thing later."""
        refs: list[Any] = []
        storages, objects = self.ledger.storages, self.ledger.objects
        for a in args:
            kind = type(a)
            if kind in _NUMBERS:
                refs.append(a)
            elif kind is Tensor or isinstance(a, Tensor):
                storage = storages.get(a.untyped_storage()._cdata)
                attached: bool | None = a.requires_grad
                value: Any = None  # a `Place` or a value
                if storage is not None and id(a) not in objects:
                    if kind is Tensor:
                        if storage.noted or storage.values:  # nobody has to be asked what lies there
                            # `geometry`, without a call: this is what the recorder does most.
                            value = storage, (a.storage_offset(), a.shape, a.stride(), a.dtype)
                    elif kind is Parameter and id(a) in self._named:
                        value = storage, geometry(a), a, attached, number_of(a) if a.numel() == 1 else _NOTHING
                        storage.noted = True
                if self.resolved and not attached:
                    attached = self.written_out(a)
                ref = Ref(self._value(a) if value is None else value, attached if self.autograd else None)
                read.append(ref)
                refs.append(ref)
            elif kind in _LISTS:
                refs.append(tuple(a if a and type(a[0]) is int else self._taken(a, read)))
            else:
                refs.append(a)
        return refs

    def _value(self, t: Tensor) -> int:
        """The value of a tensor now; what was done with its memory, or under names of before, comes first."""
        ledger = self.ledger
        storage = ledger.storage(t)
        held = ledger.objects.get(id(t))
        if storage is not None and held is not None and held[1] is storage and held[2] == len(storage.log):
            return held[0]
        looks = id(t) not in self._named and (t.ndim >= 2 or type(t) is not Tensor)  # the ledger looks for its name
        if storage is not None and (storage.noted or storage.values or looks):
            self.settle()
        return ledger.value(t)

    def _lay(self, out: Any) -> Made | None:
        """Where each tensor lies that an operation made, and its number; None where it is no plain tensor."""
        made: Made = []
        storages = self.ledger.storages
        for t in out if type(out) in _LISTS else (out,):
            if type(t) is Tensor and t.layout is _STRIDED:
                raw = t.untyped_storage()
                storage = storages.get(raw._cdata) or self.ledger.storage_at(raw)
                storage.noted = True
                g: Any = (t.storage_offset(), t.shape, t.stride(), t.dtype)
                made.append((storage, g, number_of(t) if t.numel() == 1 else _NOTHING))
            elif type(t) is not int:
                return None
        return made

    def settle(self, args: Any = None, out: Any = None) -> None:
        """Find the values of all that waits, in the order in which it ran.

        Args:
            args, out: Arguments and result of the last, where numbers are to be taken from them.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        ledger, measures = self.ledger, self.measures
        firsts: dict[int, int] = {}
        last = None if args is None else waiting[-1]
        for w in waiting:
            schema, refs, named, refs_read, where, recorded, sequence, ordinal, made, looked = w
            read = []
            for ref in refs_read:
                value = ref.value
                if type(value) is not int:
                    value = ledger.value_at(*value) if len(value) == 2 else ledger.own(*value)
                    ref.value = value
                read.append(value)
            if ledger.implied:
                self.write_down_implied()
            outputs = self._outputs(schema, read, out, ()) if made is None else self._settled(schema, read, made)
            if not outputs:
                continue
            firsts[id(w)] = outputs[0]
            record = Record(schema, tuple(refs), named, outputs, where, recorded, sequence, ordinal)
            if w is last:
                with torch.no_grad():
                    self.write_down(record, args, out)
            else:
                self.records.append(record)
                if looked is not None:
                    measures.keep(len(self.records) - 1, refs, looked, firsts)
        measures.settled(firsts)

    def _settled(self, schema: Schema, read: list[int], made: Made) -> tuple[int, ...]:
        """Values of what an operation made; none for a pure alias: detach, lift_fresh, expand to the same shape."""
        if all(storage.fresh(g) in read for storage, g, _ in made):
            return ()
        origin, varying = self._came_from(schema, read)
        fresh = self.ledger.fresh
        return tuple([fresh(storage, g, origin, varying, _NOTHING if varying else facts) for storage, g, facts in made])


def _alias(read: list[Ref], made: Made) -> bool:
    """Whether what an operation made lies where something lay that it read."""
    for storage, g, _ in made:
        for ref in read:
            value = ref.value
            if value == storage.fresh(g) if type(value) is int else value[0] is storage and value[1] == g:
                break
        else:
            return False
    return True
