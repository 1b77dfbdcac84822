"""Recording: a dispatch mode writes down every operation of one forward pass.

It runs below autograd, so it sees what is executed whatever the model is written with, and holds no
activation but the last few of the residual stream, which `measure` needs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tiebeam.backends.torch.ledger import Implied, Ledger, number_of
from tiebeam.backends.torch.measure import Measures
from tiebeam.backends.torch.schema import Schema, schema_of
from tiebeam.backends.torch.shadow import LIMIT, Shadows, tensors_in
from tiebeam.errors import TraceError
from tiebeam.ir import Origin

MADE_FROM_NOTHING = frozenset(
    "empty zeros ones full arange linspace scalar_tensor eye tril_indices triu_indices new_empty new_zeros new_ones "
    "new_full empty_like zeros_like ones_like full_like rand_like randn_like rand randn randint randperm "
    "empty_strided new_empty_strided fill zero normal uniform bernoulli exponential".split()
)

#: Arguments that an operation writes though its schema does not say so: running statistics.
WRITES_UNSAID = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor argument: its value, and whether a gradient was attached when it was read."""

    value: int
    attached: bool


@dataclass(frozen=True, slots=True)
class Record:
    """One executed operation, tensors replaced by `Ref`."""

    schema: Schema
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int, ...]
    where: str
    recorded: bool


class Recorder(TorchDispatchMode):
    """Fills `records`; `ledger` knows the values."""

    supports_higher_order_operators = True

    def __init__(self, ledger: Ledger, measures: Measures, protect: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.ledger = ledger
        self.measures = measures
        self.records: list[Record | Implied] = []
        self.shadows = Shadows()
        self.modules: list[str] = [""]
        self.protect = protect  # parameters and buffers by storage address, not yet written
        self.saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._answered: dict[int, torch.Tensor] = {}
        self.items = False  # a number was read out of a tensor that an input reached

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = schema_of(func)
        refs = self._refs(args)
        named_refs = {k: self._refs(v) for k, v in kwargs.items()}
        written = self._written(schema, args, kwargs)
        for t in written:
            self._keep(t)
        out = self._run(func, schema, args, kwargs)
        if self.ledger.implied:
            self.records += self.ledger.implied
            self.ledger.implied.clear()
        followed = self._follow(func, args, kwargs, out) if self._on_meta(out) else {}
        for t in written:
            self.ledger.wrote(t)
        outputs = self._outputs(schema, refs, named_refs, out, written, followed)
        if outputs:
            self.records.append(
                Record(schema, refs, named_refs, outputs, self.modules[-1], torch.is_grad_enabled())
            )
            self.measures.after(len(self.records) - 1, func, schema, args, refs, out, outputs)
        return out

    # -- arguments -------------------------------------------------------------------------------

    def _refs(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            return Ref(self.ledger.value(a), a.requires_grad)
        if isinstance(a, (list, tuple)):
            return tuple(self._refs(x) for x in a)
        return a

    def _written(self, schema: Schema, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
        if schema.name in WRITES_UNSAID:
            for t in tensors_in([args[i] for i in WRITES_UNSAID[schema.name] if i < len(args)]):
                self._keep(t)
        if not schema.writes and not schema.writes_names:
            return []
        places = [args[i] for i in schema.writes if i < len(args)]
        return tensors_in(places + [kwargs[n] for n in schema.writes_names if n in kwargs])

    def _keep(self, t: torch.Tensor) -> None:
        """Clone a parameter or buffer before its first write, so that the pass leaves it as it was."""
        try:
            address = t.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):
            return
        original = self.protect.pop(address, None)
        if original is not None:
            self.saved.append((original, original.detach().clone()))

    # -- execution -------------------------------------------------------------------------------

    def _on_meta(self, out: Any) -> bool:
        return any(t.device.type == "meta" for t in tensors_in(out))

    def _run(self, func: Any, schema: Schema, args: Any, kwargs: dict[str, Any]) -> Any:
        read = tensors_in((args, kwargs))
        meta = any(t.device.type == "meta" for t in read)
        if schema.name in ("_local_scalar_dense", "is_nonzero", "equal"):
            values = [self.ledger.value(t) for t in read]
            self.items |= any(self.ledger.drafts[v].varying for v in values)
            if meta:
                return self.shadows.answer(func, args, kwargs, self.ledger.value)
        if not meta:
            return func(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            return self._answer(func, schema, args, kwargs, error)

    def _answer(self, func: Any, schema: Schema, args: Any, kwargs: dict[str, Any], error: Exception) -> Any:
        """What a data-dependent operation gives on meta: its result on the shadows."""
        if any(t.is_floating_point() and t.numel() > LIMIT for t in tensors_in((args, kwargs))):
            raise _no_meta(schema, self.modules[-1]) from error
        try:
            made = self.shadows.answer(func, args, kwargs, self.ledger.value)
        except (NotImplementedError, RuntimeError, IndexError) as second:
            raise _no_meta(schema, self.modules[-1]) from second
        if isinstance(made, torch.Tensor):
            return self._to_meta(made)
        if isinstance(made, (list, tuple)):
            return type(made)(self._to_meta(m) if isinstance(m, torch.Tensor) else m for m in made)
        return made

    def _to_meta(self, made: torch.Tensor) -> torch.Tensor:
        out = made.to("meta")
        if made.numel() <= LIMIT:
            self._answered[id(out)] = made
        return out

    def _follow(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> dict[int, torch.Tensor]:
        if self._answered:
            made = dict(self._answered)
            self._answered.clear()
            return made
        try:
            return self.shadows.follow(func, args, kwargs, out, self.ledger.value)
        except (NotImplementedError, RuntimeError, TypeError):  # no CPU kernel for these: nothing is known
            return {}

    # -- results ---------------------------------------------------------------------------------

    def _outputs(
        self, schema: Schema, refs: Any, named: Any, out: Any, written: list[torch.Tensor], followed: Any
    ) -> tuple[int, ...]:
        results = tensors_in(out) or written
        if not results:
            return ()
        read = set(_ids(refs)) | set(_ids(tuple(named.values())))
        if not written and all(self.ledger.known(t) in read for t in results):
            return ()  # a pure alias: detach, alias, lift_fresh, expand to the same shape
        drafts = self.ledger.drafts
        from_nothing = schema.name in MADE_FROM_NOTHING
        varying = schema.random or (not from_nothing and any(drafts[v].varying for v in read))
        outputs = []
        for t in results:
            origin = (Origin.RANDOM if schema.random else Origin.CONSTANT) if from_nothing else Origin.NODE
            shadow = followed.get(id(t))
            facts = {} if varying else number_of(t if shadow is None else shadow)
            value = self.ledger.output(t, origin, varying=varying, **facts)
            if shadow is not None:
                self.shadows.of[value] = shadow
            outputs.append(value)
        return tuple(outputs)


def _ids(refs: Any) -> list[int]:
    if isinstance(refs, Ref):
        return [refs.value]
    if isinstance(refs, tuple):
        return [v for r in refs for v in _ids(r)]
    return []


def _no_meta(schema: Schema, where: str) -> TraceError:
    return TraceError(
        f"the operation aten::{schema.name} in {where or 'the model'} cannot be followed without values",
        got="meta tensors, and an answer that depends on activations",
        hint="inspect the model on real tensors, or with a smaller configuration",
    )
