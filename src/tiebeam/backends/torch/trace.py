"""One forward pass of a PyTorch model as core's graph."""

import dataclasses
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tiebeam.backends.protocol import RefusedError
from tiebeam.backends.torch.keep import Keeper
from tiebeam.backends.torch.ledger import Ledger
from tiebeam.backends.torch.lower import lower
from tiebeam.backends.torch.measure import Measures
from tiebeam.backends.torch.meta import MetaRecorder
from tiebeam.backends.torch.names import Names
from tiebeam.backends.torch.record import Recorder
from tiebeam.backends.torch.session import NothingKeptError, module_paths, neutral, reshard, unwrapped
from tiebeam.backends.torch.shadow import map_tensors, valueless
from tiebeam.errors import TiebeamError
from tiebeam.ir import Graph, Origin


@dataclass(frozen=True)
class Trace:
    """A traced pass: the graph, the tensors behind its leaves, and whether numbers left the tensors.

    Attributes:
        tensors: The tensor of each leaf, by `Leaf.key`.
        items: A Python number was read out of a tensor that an input reached.
    """

    graph: Graph
    tensors: Mapping[int, torch.Tensor]
    items: bool


def tensors_of(tree: Any, depth: int = 8) -> Iterator[torch.Tensor]:
    """Tensors in nested tuples, lists, mappings, dataclasses and plain objects."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif depth == 0:
        return
    elif isinstance(tree, Mapping):
        for v in tree.values():
            yield from tensors_of(v, depth - 1)
    elif isinstance(tree, (list, tuple)):
        for v in tree:
            yield from tensors_of(v, depth - 1)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for f in dataclasses.fields(tree):
            yield from tensors_of(getattr(tree, f.name), depth - 1)
    elif hasattr(tree, "__dict__") and not callable(tree):
        yield from tensors_of(vars(tree), depth - 1)


def trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, logits: bool = False, seed: int | None = None
) -> Trace:
    """Run `model(*args, **kwargs)` once and write down what it does.

    Args:
        logits: Also measure the std of the logits (one more pass over them).
        seed: Of the random generators during the pass; None takes them as they stand.

    Returns:
        The trace. Parameters, buffers, generators, modes and hooks are as before.

    Raises:
        TraceError: On meta, an operation needs activations to go on.
        Exception: Whatever the model itself raises.
    """
    try:
        return _trace(model, args, kwargs, logits=logits, seed=seed, drop=True)
    except RefusedError as refused:
        if not isinstance(refused.__cause__, NothingKeptError):
            raise
    return _trace(model, args, kwargs, logits=logits, seed=seed, drop=False)  # its forward asks for gradients


def _trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, logits: bool, seed: int | None, drop: bool
) -> Trace:
    reshard(model)
    names = Names(model)
    ledger = Ledger(names)
    measures = Measures(ledger.drafts, logits=logits)
    fake = next((t.fake_mode for t in names.held.values() if isinstance(t, FakeTensor)), None)
    if fake is not None:
        args, kwargs = _faked(fake, args), _faked(fake, dict(kwargs))
    given = list(tensors_of((args, dict(kwargs))))
    meta = any(valueless(t) for t in [*given, *names.held.values()])
    keeper = Keeper(model, ledger, given)
    recorder = MetaRecorder(ledger, measures, keeper, fake=fake) if meta else Recorder(ledger, measures, keeper)
    recorder.autograd = not any(isinstance(m, torch.jit.ScriptModule) for m in model.modules())
    inputs = []
    for t in given:
        inputs.append(ledger.output(t, ledger.place(t), Origin.INPUT, True))
        if isinstance(recorder, MetaRecorder):
            recorder.give(t, inputs[-1])
    try:
        with (
            fake or nullcontext(),
            neutral(model, seed, drop=drop),
            module_paths(model, recorder.modules),
            _no_collection(),
            recorder,
        ):
            result = _run(model, args, kwargs)
    finally:
        reshard(model)
        keeper.restore()
    with _no_collection():
        return _finish(names, ledger, recorder, measures, inputs, given, list(tensors_of(result)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Recording makes thousands of small objects: a collection in between would scan the whole process.

    What frees activations is their reference count, as ever.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _finish(
    names: Names,
    ledger: Ledger,
    recorder: Recorder,
    measures: Measures,
    inputs: list[int],
    given: list[torch.Tensor],
    returned: list[torch.Tensor],
) -> Trace:
    """Lower what was recorded."""
    outputs = tuple(ledger.value(t) for t in returned)
    graph = lower(
        ledger,
        [*recorder.records, *ledger.implied],
        inputs=tuple(inputs),
        outputs=outputs,
        attached=frozenset(v for v, t in zip(outputs, returned, strict=True) if t.requires_grad and recorder.autograd),
        rms=measures.rms,
        cosine=measures.cosine,
        logit_std=measures.logit_std,
        repeats=measures.repeats,
        meta=any(valueless(t) for t in [*given, *ledger.tensors.values()]),
        notes=tuple(f"{op} was answered without activations" for op in dict.fromkeys(recorder.answers)),
    )
    return Trace(graph, _tensors(names, ledger), recorder.items)


def _tensors(names: Names, ledger: Ledger) -> dict[int, torch.Tensor]:
    """The tensor behind each leaf: the model's own where it has values, else the one fetched for the pass."""
    tensors: dict[int, torch.Tensor] = {}
    for value, used in ledger.tensors.items():
        leaf = ledger.drafts[value].leaf
        if leaf is not None:
            own = next((names.before[n] for n in leaf.names if n in names.before), used)
            tensors.setdefault(leaf.key, used if valueless(own) else own)
    return tensors


def _faked(mode: FakeTensorMode, tree: Any) -> Any:
    """Inputs as fake tensors of the model's own mode: it takes no others."""
    return map_tensors(tree, lambda t: t if isinstance(t, FakeTensor) else mode.from_tensor(t))


def _run(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return unwrapped(model)(*args, **kwargs)
    except TiebeamError:
        raise
    except Exception as error:
        raise RefusedError from error
