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

from tiebeam.backends.torch.recording.ledger import Geometry, geometry, number_of
from tiebeam.backends.torch.recording.numbers import Looked
from tiebeam.backends.torch.recording.record import Record, Recorder, Ref, latest_node
from tiebeam.backends.torch.recording.schema import Schema, schema_of

BATCH = 4096  # operations that wait at most

_LISTS = frozenset((list, tuple))
_NOTHING: dict[str, Any] = {}
_STRIDED = torch.strided

#: Where a tensor lies that an operation read: the address of its storage, whether it carried a gradient, and its
#: geometry (offset, shape, strides, dtype); of the model's own parameters also the parameter, and the facts of one with
#: one element. Flat, for thousands are made while the model runs.
Place = tuple[Any, ...]

#: What an operation made: the address, the geometry, and the facts of what has one element.
Made = tuple[int, Geometry, dict[str, Any]]

#: An operation that ran: its schema, arguments and keyword arguments (in the place of a tensor its `Place`, or a `Ref`
#: where the value is known), the module, whether gradients were recorded, autograd's latest node, the ordinal.
Ran = tuple[Schema, list[Any], dict[str, Any], str, bool, int, int]

#: One that is not settled: also what was made (None where that is no plain tensor), and numbers that were taken.
Waiting = tuple[Schema, list[Any], dict[str, Any], str, bool, int, int, list[Made] | None, Looked | None]


class BatchRecorder(Recorder):
    """A recorder for models that hold real tensors and do not swap their parameters."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: list[Waiting] = []
        self._named = frozenset(self.ledger.names.paths)  # tensors whose names nobody has to look for
        self._made: set[int] = set()  # addresses of what operations made, each held by the ledger
        self._noted: set[int] = set()  # of other storages that operations read or made views of

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = schema_of(func)
        if not schema.reads_alone or self.resolved:
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        try:
            taken = self._taken(args)
            named = dict(zip(kwargs, self._taken(kwargs.values()), strict=True)) if kwargs else _NOTHING
        except (NotImplementedError, RuntimeError, ValueError):  # a tensor without a storage
            self.settle()
            return super().__torch_dispatch__(func, types, args, kwargs)
        where, recorded, sequence, ordinal = self.modules[-1], is_grad_enabled(), latest_node(), self.ran
        name = schema.name
        if name != "detach":  # how often a tensor is detached depends on who looks on
            self.ran = ordinal + 1
        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:  # the model may go on without: what it would have read was used all the same
            self._waiting.append((schema, taken, named, where, recorded, sequence, ordinal, [], None))
            raise
        if name == "clone":
            self.resolve(args[0], out)
        self._wait((schema, taken, named, where, recorded, sequence, ordinal), args, out)
        return out

    def _wait(self, ran: Ran, args: Any, out: Any) -> None:
        """Take down where an operation wrote and the numbers that nobody can take later; the rest waits."""
        measures, looked = self.measures, None
        before = len(self._made)
        made = self._lie(out)
        if ran[0].telling or made is None or measures.logits:
            if made is None or measures.concerns(ran[0]):
                self._waiting.append((*ran, made, None))
                self.settle(args, out)
                return
            if self._may_read_out(ran[1], made):
                looked = measures.look(args, out)
        w = (*ran, made, looked)
        self._waiting.append(w)
        if made and (type(out) is not Tensor or out.numel() == measures.numel):
            first = measures.of_stream(out)
            if first is not None and (len(self._made) > before or self._goes_on(ran[1], made[0], first)):
                measures.flow(w, first, made[0][0])
        if len(self._waiting) >= BATCH:
            self.settle()

    def _taken(self, args: Any) -> list[Any]:
        """Arguments with the place of each tensor; its value where that may be another thing later."""
        taken: list[Any] = []
        made = self._made
        for a in args:
            kind = type(a)
            if kind is Tensor:
                address = a.untyped_storage()._cdata
                if address in made:  # nobody has to be asked what lies there
                    taken.append((address, a.requires_grad, a.storage_offset(), a.shape, a.stride(), a.dtype))
                else:
                    taken.append(self._found(a, address))
            elif kind is Parameter:
                taken.append(self._parameter(a))
            elif kind in _LISTS:
                taken.append(list(a) if a and type(a[0]) is int else self._taken(a))
            elif isinstance(a, Tensor):
                taken.append(Ref(self._value(a), a.requires_grad))
            else:
                taken.append(a)
        return taken

    def _found(self, t: Tensor, address: int) -> Place | Ref:
        """What the model or the caller holds, a view of it, or what came from somewhere else."""
        ledger = self.ledger
        if id(t) not in ledger.objects:
            storage = ledger.storages.get(address)
            if address in self._noted or (storage is not None and storage.values):
                return address, t.requires_grad, t.storage_offset(), t.shape, t.stride(), t.dtype
        return Ref(self._value(t), t.requires_grad)

    def _parameter(self, t: Parameter) -> Place | Ref:
        if id(t) not in self._named or id(t) in self.ledger.objects:
            return Ref(self._value(t), t.requires_grad)
        raw = t.untyped_storage()
        address = raw._cdata
        if not self._awaited(address):
            self.ledger.storage_at(raw)  # held: it may be lent by somebody, and gone before this is settled
            self._noted.add(address)
        facts = number_of(t) if t.numel() == 1 else _NOTHING
        return address, t.requires_grad, t.storage_offset(), t.shape, t.stride(), t.dtype, t, facts

    def _value(self, t: Tensor) -> int:
        """The value of a tensor now; what was done with its memory, or under names of before, comes first."""
        ledger = self.ledger
        storage = ledger.storage(t)
        held = ledger.objects.get(id(t))
        if storage is not None and held is not None and held[1] is storage and held[2] == len(storage.log):
            return held[0]
        looks = id(t) not in self._named and (t.ndim >= 2 or type(t) is not Tensor)  # the ledger looks for its name
        if storage is not None and (storage.values or looks or self._awaited(storage.address)):
            self.settle()
        return ledger.value(t)

    def _awaited(self, address: int) -> bool:
        """Whether values of what lies there may be still to come."""
        return address in self._noted or address in self._made

    def _may_read_out(self, taken: list[Any], made: list[Made]) -> bool:
        """Whether `Measures.look` may find something, told by where a product read and wrote."""
        measures = self.measures
        if measures.wide(made[0][1][1]):
            return True
        return any(a[0] in measures.tables if type(a) is tuple else type(a) is Ref for a in taken)

    def _goes_on(self, taken: list[Any], made: Made, t: Tensor) -> bool:
        """Whether what lies in memory of before is a step of the residual stream: no alias, and no view of a step."""
        address, g, _ = made
        storage = self.ledger.storages.get(address)
        known = None if storage is None else storage.fresh(g)
        for a in taken:
            if (a[0] == address and a[2:6] == g) if type(a) is tuple else (type(a) is Ref and a.value == known):
                return False
        return not self.measures.flows_at(address, t)

    def _lie(self, out: Any) -> list[Made] | None:
        """Where each tensor lies that an operation made, and its number; None where one is no plain tensor."""
        made: list[Made] = []
        for t in out if type(out) in _LISTS else (out,):
            if type(t) is Tensor and t.layout is _STRIDED:
                raw = t.untyped_storage()
                address: Any = raw._cdata
                if address not in self._made:
                    if address in self.ledger.storages:
                        self._noted.add(address)
                    else:
                        self.ledger.hold(raw)
                        self._made.add(address)
                facts = number_of(t) if t.numel() == 1 else _NOTHING
                made.append((address, geometry(t), facts))
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
        measures = self.measures
        firsts: dict[int, int] = {}
        last = None if args is None else waiting[-1]
        for w in waiting:
            schema, taken, named, where, recorded, sequence, ordinal, made, looked = w
            read: list[int] = []
            refs = self._settled(taken, read)
            kwargs = dict(zip(named, self._settled(named.values(), read), strict=True)) if named else _NOTHING
            if self.ledger.implied:
                self.write_down_implied()
            outputs = self._outputs(schema, read, out, ()) if made is None else self._new(schema, read, made)
            if not outputs:
                continue
            firsts[id(w)] = outputs[0]
            record = Record(schema, refs, kwargs, outputs, where, recorded, sequence, ordinal)
            if w is last:
                with torch.no_grad():
                    self.write_down(record, args, out)
            else:
                self.records.append(record)
                if looked is not None:
                    measures.keep(len(self.records) - 1, refs, looked, firsts)
        measures.settled(firsts)

    def _settled(self, taken: Any, read: list[int]) -> tuple[Any, ...]:
        """Arguments with a `Ref` for each place; all values among them into `read`."""
        refs: list[Any] = []
        ledger = self.ledger
        for a in taken:
            kind = type(a)
            if kind is tuple:
                address, attached, *g = a
                storage = ledger.at(address)
                if len(g) == 4:
                    value = ledger.value_at(storage, tuple(g))
                else:
                    value = ledger.own(storage, tuple(g[:4]), g[4], attached, g[5])
                a = Ref(value, attached if self.autograd else None)
            elif kind is list:
                a = tuple(a) if a and type(a[0]) is int else self._settled(a, read)
            elif kind is Ref and not self.autograd:
                a = Ref(a.value, None)
            if type(a) is Ref:
                read.append(a.value)
            refs.append(a)
        return tuple(refs)

    def _new(self, schema: Schema, read: list[int], made: list[Made]) -> tuple[int, ...]:
        """Values of what an operation made; none for a pure alias: detach, lift_fresh, expand to the same shape."""
        lies = [(self.ledger.at(address), g, facts) for address, g, facts in made]
        if all(storage.fresh(g) in read for storage, g, _ in lies):
            return ()
        origin, varying = self._came_from(schema, read)
        fresh = self.ledger.fresh
        return tuple([fresh(storage, g, origin, varying, _NOTHING if varying else facts) for storage, g, facts in lies])
