"""One forward pass of a PyTorch model as core's graph."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import GeneratorType
from typing import Any, Protocol

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tiebeam.backends.protocol import RefusedError
from tiebeam.backends.torch.containers import rebuilt, tensors_of
from tiebeam.backends.torch.lowering.lower import lower
from tiebeam.backends.torch.names import Names, first_paths, module_tree
from tiebeam.backends.torch.recording.batch import BatchRecorder
from tiebeam.backends.torch.recording.keep import Keeper
from tiebeam.backends.torch.recording.ledger import Ledger
from tiebeam.backends.torch.recording.meta import MetaRecorder
from tiebeam.backends.torch.recording.numbers import Measures
from tiebeam.backends.torch.recording.paths import module_paths
from tiebeam.backends.torch.recording.record import Recorder
from tiebeam.backends.torch.recording.shadow import valueless
from tiebeam.backends.torch.session import neutral, reshard, unwrapped
from tiebeam.core.collection import no_collection
from tiebeam.errors import TiebeamError
from tiebeam.ir import Graph, Op, Origin


@dataclass(frozen=True, slots=True)
class How:
    """How a pass is run.

    Attributes:
        drop: Keep nothing for a backward pass.
        grad: Record gradients whatever the caller's mode.
        compiler: The compiler was loaded before the pass, so that it is told to stay out.
        fill: What a float that nobody knows is on meta.
    """

    drop: bool = True
    grad: bool = True
    compiler: bool = False
    fill: float = math.nan


@dataclass(frozen=True)
class Trace:
    """A traced pass: the graph, the tensors behind its leaves, and whether numbers left the tensors.

    Attributes:
        tensors: The tensor of each leaf, by `Leaf.key`.
        used: The tensors that stood for it in the pass: others than that where a wrapper fetches it.
        items: A Python number was read out of a tensor that an input reached, or was made up.
        how: The way in which the model could be run.
        steps: For each node of the graph its record's `sequence` and `ordinal`.
        ids: Integers that came in, and those that rows were looked up at, by value id.
    """

    graph: Graph
    tensors: Mapping[int, torch.Tensor]
    items: bool
    how: How = field(default_factory=How)
    steps: Sequence[tuple[int, int]] = ()
    ids: Mapping[int, torch.Tensor] = field(default_factory=dict)
    used: Mapping[int, Sequence[torch.Tensor]] = field(default_factory=dict)


class Then(Protocol):
    """What goes on with a pass that is still alive: told of the trace and of the tensors that the model returned."""

    def __call__(self, traced: Trace, result: Any, returned: Sequence[torch.Tensor]) -> None: ...


def trace(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    logits: bool = False,
    seed: int | None = None,
    other: bool = False,
    how: How | None = None,
    then: Then | None = None,
) -> Trace:
    """Run `model(*args, **kwargs)` once and write down what it does.

    Args:
        logits: Also measure the std of the logits (one more pass over them).
        seed: Of the random generators during the pass; None takes them as they stand.
        other: The pass confirms another: what is made up on meta is made up differently.
        how: The pass is run so or not at all; None: the way that tells most, and others where the model refuses it.
        then: Called before the model is put back as it was; autograd's graph is kept for it.

    Returns:
        The trace. Parameters, buffers, generators, modes and hooks are as before.

    Raises:
        TraceError: On meta, an operation needs activations to go on.
        Exception: Whatever the model itself raises.
    """
    now = how or How(compiler=_compiler(), drop=then is None)
    while True:
        try:
            with no_collection():  # until its records are gone
                return _trace(model, args, kwargs, now, logits=logits, seed=seed, other=other, then=then)
        except RefusedError as refused:
            again = _otherwise(now, refused)
            if how is not None or again is None:
                raise
            now = again


class _MadeUpError(RefusedError):
    """The model refused numbers that may be made up."""


def _otherwise(how: How, refused: RefusedError) -> How | None:
    """What to do next without of all that tells a pass from a plain call; None where nothing is left."""
    if isinstance(refused, _MadeUpError) and math.isnan(how.fill):
        return replace(how, fill=0.0)
    why = refused.__cause__
    if not isinstance(why, RuntimeError) or isinstance(why, torch.OutOfMemoryError):
        return None  # none of PyTorch's refusals
    if _compiler() and not how.compiler:
        return replace(how, compiler=True)  # loaded in the pass, by an operator that compiles itself
    if how.drop:
        return replace(how, drop=False)  # its forward asks for gradients
    if how.grad and not torch.is_grad_enabled():
        return replace(how, grad=False)  # a kernel without a backward pass
    return None


def _compiler() -> bool:
    return "torch._dynamo" in sys.modules


def _trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], how: How, *,
    logits: bool, seed: int | None, other: bool, then: Then | None,
) -> Trace:  # fmt: skip
    tree = module_tree(model)  # one walk: on meta a walk costs as much as many operations
    paths = first_paths(tree)
    modules = [m for _, m in paths]
    reshard(modules)
    names = Names(model, tree)
    parameters = names.owned()
    ledger = Ledger(names)
    measures = Measures(ledger.drafts, logits=logits)
    fake = next((t.fake_mode for t in names.held.values() if isinstance(t, FakeTensor)), None)
    args, kwargs = rebuilt((args, dict(kwargs)), lambda t, _: t if fake is None else _faked(fake, t))
    given = list(tensors_of((args, dict(kwargs))))
    meta = any(valueless(t) for t in [*given, *names.held.values()])
    keeper = Keeper(modules, names, ledger, given)
    recorder: Recorder
    if meta:
        recorder = MetaRecorder(ledger, measures, keeper, fake=fake, fill=how.fill, other=other)
    else:  # parameters that come and go are looked at while they are there
        recorder = (BatchRecorder if keeper.steady else Recorder)(ledger, measures, keeper)
    recorder.autograd = not any(isinstance(m, torch.jit.ScriptModule) for m in modules)
    inputs = []
    for t in given:
        inputs.append(ledger.output(t, ledger.place(t), Origin.INPUT, True))
        if isinstance(recorder, MetaRecorder):
            recorder.give(t, inputs[-1])
    try:
        with fake or nullcontext(), neutral(modules, parameters, seed, drop=how.drop, grad=how.grad):
            with module_paths(paths, recorder.modules), recorder:
                result = _run(model, args, kwargs)
            if then is not None:
                returned = list(tensors_of(result, modules=True))
                traced = replace(_finish(names, ledger, recorder, measures, inputs, given, returned), how=how)
                then(traced, result, returned)
                return traced
    except RefusedError as refused:
        if recorder.answers:
            raise _MadeUpError from refused.__cause__
        raise
    finally:
        reshard(modules)
        keeper.restore()
    traced = _finish(names, ledger, recorder, measures, inputs, given, list(tensors_of(result, modules=True)))
    return replace(traced, how=how)


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
    recorder.settle()
    seen = len(ledger.drafts)
    outputs = tuple(ledger.value(t) for t in returned)
    unseen = any(v >= seen and ledger.drafts[v].origin is Origin.CONSTANT for v in outputs)
    steps: list[tuple[int, int]] = []
    graph = lower(
        ledger,
        [*recorder.records, *ledger.implied],
        steps,
        inputs=tuple(inputs),
        outputs=outputs,
        attached=frozenset(v for v, t in zip(outputs, returned, strict=True) if t.requires_grad and recorder.autograd),
        rms=measures.rms,
        cosine=measures.cosine,
        logit_std=measures.logit_std,
        repeats=measures.repeats,
        meta=any(valueless(t) for t in [*given, *ledger.tensors.values()]),
        notes=(
            *(f"{op} was answered without values" for op in dict.fromkeys(recorder.answers)),
            *[_OUT_OF_SIGHT for _ in outputs[:1] if unseen],
        ),
    )
    graph = replace(graph, notes=(*graph.notes, *_nameless(graph, ledger)))
    graph = _without_made_up(graph) if recorder.answers else graph
    integers = {v: t for v, t in zip(inputs, given, strict=True) if not t.is_floating_point()}
    ids = {**integers, **measures.ids}
    return Trace(graph, _tensors(names, ledger), recorder.items, steps=steps, ids=ids, used=_used(ledger))


def _without_made_up(graph: Graph) -> Graph:
    """NaN is what meta tensors answer where nobody knows: a number that it went into is lost."""
    values = [v._replace(number=None, lost=True) if v.number is not None and math.isnan(v.number) else v
              for v in graph.values]  # fmt: skip
    return replace(graph, values=tuple(values))


_OUT_OF_SIGHT = (
    "what the model returned was made out of sight: in another thread or process, or by something that is not PyTorch"
)


def _nameless(graph: Graph, ledger: Ledger) -> Iterator[str]:
    """Matrices that are read by token id, but that nothing of the model holds."""
    for v in dict.fromkeys(
        n.inputs[0] for n in graph.nodes if n.op is Op.GATHER and ledger.drafts[n.inputs[1]].varying
    ):
        table = graph.values[v]
        if table.origin is Origin.CONSTANT and len(table.shape) == 2 and not table.integral:
            yield (
                f"rows of a tensor of shape {table.shape} are read that is no parameter, buffer or attribute of the "
                "model: it is in no table"
            )


def _tensors(names: Names, ledger: Ledger) -> dict[int, torch.Tensor]:
    """The tensor behind each leaf: the model's own where it has values, else the one fetched for the pass."""
    tensors: dict[int, torch.Tensor] = {}
    for value, used in ledger.tensors.items():
        leaf = ledger.drafts[value].leaf
        if leaf is not None:
            own = next((names.before[n] for n in leaf.names if n in names.before), used)
            tensors.setdefault(leaf.key, used if valueless(own) else own)
    return tensors


def _used(ledger: Ledger) -> dict[int, list[torch.Tensor]]:
    """The tensors behind each leaf as the pass had them, each once."""
    found: dict[int, list[torch.Tensor]] = {}
    for value, tensor in ledger.tensors.items():
        leaf = ledger.drafts[value].leaf
        if leaf is not None and all(t is not tensor for t in found.setdefault(leaf.key, [])):
            found[leaf.key].append(tensor)
    return found


def _faked(mode: FakeTensorMode, t: torch.Tensor) -> torch.Tensor:
    """An input as a fake tensor of the model's own mode: it takes no others."""
    return t if isinstance(t, FakeTensor) else mode.from_tensor(t)


def _run(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        result = unwrapped(model)(*args, **kwargs)
        return list(result) if isinstance(result, GeneratorType) else result  # its forward runs as it is asked
    except TiebeamError:
        raise
    except Exception as error:
        raise RefusedError from error
