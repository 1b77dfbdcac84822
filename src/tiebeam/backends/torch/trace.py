"""One forward pass of a PyTorch model as core's graph."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tiebeam.backends.protocol import Refused
from tiebeam.backends.torch.ledger import Ledger
from tiebeam.backends.torch.lower import lower
from tiebeam.backends.torch.measure import Measures
from tiebeam.backends.torch.names import Names, named_tensors
from tiebeam.backends.torch.record import Recorder
from tiebeam.backends.torch.session import module_paths, neutral, unwrapped
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
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, logits: bool = False
) -> Trace:
    """Run `model(*args, **kwargs)` once and write down what it does.

    Args:
        logits: Also measure the std of the logits (one more pass over them).

    Returns:
        The trace. Parameters, buffers, generators, modes and hooks are as before.

    Raises:
        TraceError: On meta, an operation needs activations to go on.
        Exception: Whatever the model itself raises.
    """
    names = Names(model)
    ledger = Ledger(names)
    measures = Measures(ledger.drafts, logits=logits)
    protect = {}
    for _, t, _ in named_tensors(model):
        storage = ledger.storage(t)
        if storage is not None:
            protect[t.untyped_storage()._cdata] = t
    recorder = Recorder(ledger, measures, protect)
    given = list(tensors_of((args, dict(kwargs))))
    for t in given:
        value = ledger.output(t, Origin.INPUT, varying=True)
        if t.device.type == "meta" and not t.is_floating_point():
            recorder.shadows.of[value] = torch.ones(t.shape, dtype=t.dtype)
    inputs = tuple(ledger.value(t) for t in given)
    try:
        with neutral(model), module_paths(model, recorder.modules), recorder:
            result = _run(model, args, kwargs)
    finally:
        with torch.no_grad():
            for original, value_before in reversed(recorder.saved):
                original.copy_(value_before)
    returned = list(tensors_of(result))
    outputs = tuple(ledger.value(t) for t in returned)
    graph = lower(
        ledger,
        [*recorder.records, *ledger.implied],
        inputs=inputs,
        outputs=outputs,
        attached=frozenset(v for v, t in zip(outputs, returned, strict=True) if t.requires_grad),
        rms=measures.rms,
        cosine=measures.cosine,
        logit_std=measures.logit_std,
        repeats=_repeats(given),
        meta=any(t.device.type == "meta" for t in [*given, *model.parameters()]),
        notes=tuple(
            f"{op} was answered without activations" for op in dict.fromkeys(recorder.shadows.answers)
        ),
    )
    tensors = {}
    for held in names.held.values():
        known = ledger.objects.get(id(held))
        if known is not None:
            leaf = ledger.drafts[known[0]].leaf
            if leaf is not None:
                tensors.setdefault(leaf.key, held)
    return Trace(graph, tensors, recorder.items)


def _run(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return unwrapped(model)(*args, **kwargs)
    except TiebeamError:
        raise
    except Exception as error:
        raise Refused from error


def _repeats(given: list[torch.Tensor]) -> float | None:
    """Share of positions whose next token is the same token, in the first integer input."""
    for t in given:
        if not t.is_floating_point() and t.dtype != torch.bool and t.ndim >= 1 and t.shape[-1] > 1:
            if t.device.type == "meta" or type(t) is not torch.Tensor:
                return None
            return float((t[..., 1:] == t[..., :-1]).float().mean())
    return None
