"""Recording: a dispatch mode writes down every operation of one forward pass.

It runs below autograd, so it sees what is executed whatever the model is written with, and holds no
activation but the last few of the residual stream, which `numbers` needs.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tiebeam.backends.torch.recording.control import CONTROL
from tiebeam.backends.torch.recording.keep import Keeper
from tiebeam.backends.torch.recording.ledger import Implied, Ledger, number_of
from tiebeam.backends.torch.recording.numbers import Measures
from tiebeam.backends.torch.recording.schema import READS_OUT, WRITES_UNSAID, Schema, schema_of
from tiebeam.backends.torch.recording.shadow import tensors_in
from tiebeam.ir import Origin

MADE_FROM_NOTHING = frozenset(
    "empty zeros ones full arange linspace scalar_tensor eye tril_indices triu_indices new_empty new_zeros new_ones "
    "new_full empty_like zeros_like ones_like full_like rand_like randn_like rand randn randint randperm "
    "empty_strided new_empty_strided fill zero normal uniform bernoulli exponential".split()
)


_next_node = torch._C._autograd._get_sequence_nr


def latest_node() -> int:
    """Number of the node that autograd made last in this thread."""
    return _next_node() - 1


@dataclass(slots=True)  # not frozen: thousands are made while the model runs, and freezing triples the cost
class Ref:
    """A tensor argument: its value (the tensor itself until that is known), and whether it carried a gradient then."""

    value: Any
    attached: bool | None


@dataclass(slots=True)
class Record:
    """One executed operation, tensors replaced by `Ref`.

    Attributes:
        sequence: Number of autograd's latest node: this operation's own, made just before it came here; or that of
            the custom function whose forward ran it.
        ordinal: How many operations the pass had run before, detaching aside.
    """

    schema: Schema
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int, ...]
    where: str
    recorded: bool
    sequence: int = -1
    ordinal: int = -1


class Recorder(TorchDispatchMode):
    """Fills `records`; `ledger` knows the values.

    Args:
        keeper: Told of everything that is about to be written.
    """

    supports_higher_order_operators = True
    decomposes = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper against the compiler: the pass is eager, and the wrapper would load the compiler (seconds)."""
        return False

    def __init__(self, ledger: Ledger, measures: Measures, keeper: Keeper) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self.measures = measures
        self.records: list[Record | Implied] = []
        self.modules: list[str] = [""]
        self.keeper = keeper
        self.answers: list[str] = []  # operations whose result was made up (meta tensors)
        self.autograd = True  # False where flags say nothing: TorchScript differentiates by itself
        self.ran = 0
        self.resolved: dict[int, weakref.ref[torch.Tensor]] = {}  # conjugates written out below autograd, by id
        self.items = False  # a number was read out of a tensor that an input reached

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = schema_of(func)
        if schema.composite and self.decomposes:  # reached whole only where autograd is off (inference tensors)
            with self:
                out = func.decompose(*args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        if schema.name in CONTROL:
            with self:
                return CONTROL[schema.name](*args, **(kwargs or {}))
        read: list[int] = []
        refs = self._refs(args, read)
        named = {k: self._refs((v,), read)[0] for k, v in kwargs.items()} if kwargs else {}
        written = self._written(schema, args, kwargs) if schema.writes_any else ()
        sequence, ordinal = latest_node(), self.ran
        self.ran += schema.name != "detach"  # how often a tensor is detached depends on who looks on
        if schema.name in READS_OUT:
            self.items |= any(self.ledger.drafts[v].varying for v in read)
        out = self.run(func, schema, args, kwargs or {})
        if schema.name == "clone":
            self.resolve(args[0], out)
        self.write_down_implied()
        self.follow(read, func, args, kwargs or {}, out)
        outputs = self._outputs(schema, read, out, written)
        if outputs:
            place, recorded = self.modules[-1], torch.is_grad_enabled()
            self.write_down(Record(schema, refs, named, outputs, place, recorded, sequence, ordinal), args, out)
        return out

    def settle(self) -> None:
        """Find the values of what is recorded so far."""

    def write_down(self, record: Record, args: Any, out: Any) -> None:
        """Append what was executed and take the numbers that go with it."""
        schema = record.schema
        self.records.append(record)
        if schema.writes_any:
            self.measures.overwritten([args[i] for i in schema.writes if i < len(args)], out)
        self.measures.after(len(self.records) - 1, schema, args, record.args, out, record.outputs)

    def write_down_implied(self) -> None:
        """Append the views and updates that the ledger has just come upon."""
        if self.ledger.implied:
            self.records += self.ledger.implied
            self.ledger.implied.clear()

    def resolve(self, t: torch.Tensor, out: torch.Tensor) -> None:
        """Remember a conjugate that is written out for a kernel that takes none: a gradient flows, no flag says so."""
        if (t.is_conj() or t.is_neg()) and t.requires_grad:
            self.resolved[id(out)] = weakref.ref(out)

    def written_out(self, t: torch.Tensor) -> bool:
        """Whether a tensor is such a conjugate."""
        return id(t) in self.resolved and self.resolved[id(t)]() is t

    def run(self, func: Any, schema: Schema, args: Any, kwargs: dict[str, Any]) -> Any:
        """Execute the operation."""
        return func(*args, **kwargs)

    def follow(self, read: list[int], func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Called with the values read and the result, before what was written becomes a new value."""

    def facts(self, t: torch.Tensor) -> dict[str, Any]:
        """Facts of a result that no input reached: the number it is."""
        return number_of(t)

    def made(self, t: torch.Tensor, value: int) -> None:
        """Called with each result's value."""

    def _refs(self, args: Any, read: list[int]) -> tuple[Any, ...]:
        refs: list[Any] = []
        for a in args:
            if isinstance(a, torch.Tensor):
                value = self.ledger.value(a)
                read.append(value)
                attached = a.requires_grad or (bool(self.resolved) and self.written_out(a))
                refs.append(Ref(value, attached if self.autograd else None))
            elif isinstance(a, (list, tuple)):
                refs.append(self._refs(a, read))
            else:
                refs.append(a)
        return tuple(refs)

    def _written(self, schema: Schema, args: Any, kwargs: dict[str, Any] | None) -> list[torch.Tensor]:
        """Tensors that the operation is about to write; parameters and buffers among them are kept."""
        unsaid = tensors_in([args[i] for i in WRITES_UNSAID.get(schema.name, ()) if i < len(args)])
        named = kwargs or {}
        said = [args[i] for i in schema.writes if i < len(args)]
        written = tensors_in(said + [named[n] for n in schema.writes_names if n in named])
        for t in [*written, *unsaid]:
            self.keeper.before_write(t)
        return written

    def _outputs(self, schema: Schema, read: list[int], out: Any, written: Sequence[torch.Tensor]) -> tuple[int, ...]:
        ledger = self.ledger
        if not written and isinstance(out, torch.Tensor):  # by far the most
            storage, g = place = ledger.place(out)
            if storage is not None and storage.fresh(g) in read:
                return ()  # a pure alias: detach, alias, lift_fresh, expand to the same shape
            origin, varying = self._came_from(schema, read)
            value = ledger.output(out, place, origin, varying, **({} if varying else self.facts(out)))
            self.made(out, value)
            return (value,)
        results = [out] if isinstance(out, torch.Tensor) else list(tensors_in(out))
        places = [ledger.place(t) for t in results]
        changed = {id(ledger.storage(t)) for t in written}
        for t in written:  # what is written and not returned: running statistics, `out=` of some operations
            place = ledger.place(t)
            if all(place[0] is not s for s, _ in places):
                results.append(t)
                places.append(place)
        if not results:
            return ()
        if not written and all(s is not None and s.fresh(g) in read for s, g in places):
            return ()
        origin, varying = self._came_from(schema, read)
        outputs = []
        for t, place in zip(results, places, strict=True):
            facts = {} if varying else self.facts(t)
            value = ledger.output(t, place, origin, varying, written=id(place[0]) in changed, **facts)
            self.made(t, value)
            outputs.append(value)
        return tuple(outputs)

    def _came_from(self, schema: Schema, read: list[int]) -> tuple[Origin, bool]:
        """Origin of what an operation makes, and whether it is another at each call."""
        if schema.name in MADE_FROM_NOTHING:
            return (Origin.RANDOM if schema.random else Origin.CONSTANT), schema.random
        if schema.random:
            return Origin.NODE, True
        drafts = self.ledger.drafts
        for v in read:  # no generator: this is done for every operation
            if drafts[v].varying:
                return Origin.NODE, True
        return Origin.NODE, False
