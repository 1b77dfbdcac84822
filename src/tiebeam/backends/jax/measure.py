"""Numbers that only exist when the program runs: one evaluation of the jaxpr gives all that the graph asks for.

The structure is known first, so exactly the values that matter are looked at. They are reduced where they are
made, inside loops too, so nothing large is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.backends.jax.calls import INLINE, body_of
from tiebeam.backends.jax.fold import bound
from tiebeam.backends.jax.lower import Frame
from tiebeam.core.contract import contracted
from tiebeam.core.norms import normalized_upstream, stream_before
from tiebeam.core.provenance import provenance
from tiebeam.core.reads import find_reads
from tiebeam.core.walk import Forward
from tiebeam.ir import Graph

ROWS = 2048  # rows that a cosine is averaged over
Sink = dict[tuple[str, int], Any]


@dataclass(frozen=True)
class Wanted:
    """What to measure, by value id.

    Attributes:
        moments: Mean and variance of all elements.
        whole: The elements, for cosines; `numbers`: the elements, to be handed out.
        cosines: (node, stream, rows): mean cosine of two of the values in `whole`, row by row.
        logits: Those of `moments` whose std is asked for.
    """

    moments: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    cosines: tuple[tuple[int, int, int], ...] = ()
    logits: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()

    def ids(self) -> frozenset[int]:
        return self.moments | self.whole | self.numbers


def wanted_of(graph: Graph, *, logits: bool) -> Wanted:
    """What core will ask of this graph: sizes at both ends of each role, and the streams that normalisations read."""
    graph = contracted(graph)
    flags = provenance(graph)
    reads = find_reads(graph, flags)
    moments = {r.node.output for r in reads.lookups} | {r.other for r in reads.readouts}
    cosines, ends = [], set[int]()
    for read in reads.readouts:
        stream = stream_before(graph, flags, read.other)
        stream = normalized_upstream(graph, flags, read.other) if stream is None else stream
        looked = [r for r in reads.lookups if r.node.index < read.node.index]
        rows = [r for r in looked if r.source.leaf.key == read.source.leaf.key] or looked
        if stream is not None and rows:
            cosines.append((read.node.index, stream, rows[-1].node.output))
        if logits:
            walk = Forward(graph, flags, read.node.output, read.axis).run()
            ends |= {read.node.output, *(v for v, _ in walk.ends)}
    floats = {v for v in moments | ends if graph.values[v].dtype.startswith(("float", "bfloat"))}
    whole = frozenset(v for _, *pair in cosines for v in pair)
    return Wanted(frozenset(floats), whole, tuple(cosines), frozenset(ends & floats))


def evaluator(closed: Any, frame: Frame, wanted: Wanted) -> Callable[..., dict[str, Any]]:
    """A compiled function of the program's arguments that returns the measurements."""

    def run(args: Sequence[Any]) -> dict[str, Any]:
        sink: Sink = {}
        _Interpreter(wanted).run(frame, closed.consts, args, sink)
        moments = {v: sink["moments", v] for v in wanted.moments if ("moments", v) in sink}
        whole = {v: sink["whole", v] for v in wanted.whole if ("whole", v) in sink}
        cosines = {
            f"{node} {stream}": c
            for node, stream, rows in wanted.cosines
            if stream in whole and rows in whole and (c := _cosine(whole[stream], whole[rows])) is not None
        }
        numbers = {v: sink["whole", v] for v in wanted.numbers if ("whole", v) in sink}
        return {"moments": moments, "cosines": cosines, "numbers": numbers}

    return jax.jit(run)


def facts_of(found: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The measurements as fields of `Graph`."""
    rms: dict[int, float] = {}
    logit_std: dict[int, float] = {}
    for v, (mean, variance) in found["moments"].items():
        means, variances = np.asarray(mean, np.float64), np.asarray(variance, np.float64)
        rms[v] = float(np.sqrt(np.mean(variances + means**2)))
        if v in wanted.logits:
            logit_std[v] = float(np.sqrt(np.mean(variances + means**2) - np.mean(means) ** 2))
    cosine = {tuple(map(int, key.split())): float(c) for key, c in found["cosines"].items()}
    return {"rms": rms, "logit_std": logit_std, "cosine": cosine}


def wide_enough(dtype: Any) -> Any:
    """The dtype to add up in."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def _cosine(stream: jax.Array, rows: jax.Array) -> jax.Array | None:
    """Mean cosine of rows; of a stream that a loop hands on, the last round's."""
    width = rows.shape[-1]
    while stream.ndim > 1 and stream.size > rows.size:
        stream = stream[-1]
    if stream.shape[-1:] != (width,) or stream.size != rows.size or not rows.size:
        return None
    a, b = (x.reshape(-1, width)[:ROWS].astype(jnp.float32) for x in (stream, rows))
    norms = jnp.linalg.norm(a, axis=1) * jnp.linalg.norm(b, axis=1)
    return jnp.mean(jnp.sum(a * b, axis=1) / jnp.maximum(norms, 1e-30))


class _Interpreter:
    """Runs a frame's jaxpr; frames inside it are opened only where something in them is wanted."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.ids = wanted.ids()
        self.whole = wanted.whole | wanted.numbers

    def run(self, frame: Frame, consts: Sequence[Any], args: Sequence[Any], sink: Sink) -> list[Any]:
        jaxpr = frame.jaxpr
        values = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
        for var, value in values.items():
            self._take(frame.ids[var], value, sink)

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for position, eqn in enumerate(jaxpr.eqns):
            operands = [read(a) for a in eqn.invars]
            inner = frame.inside.get(position)
            if inner is not None and eqn.primitive.name in OPENERS and self._holds(inner):
                results = OPENERS[eqn.primitive.name](self, eqn, inner, operands, sink)
            else:
                results = bound(eqn, operands)
            several = results if eqn.primitive.multiple_results else [results]
            for var, value in zip(eqn.outvars, several, strict=True):
                values[var] = value
                self._take(frame.ids[var], value, sink)
        return [read(v) for v in jaxpr.outvars]

    def _holds(self, frame: Frame) -> bool:
        return any(frame.first <= v < frame.last for v in self.ids)

    def _take(self, value: int, array: Any, sink: Sink) -> None:
        if value in self.wanted.moments and ("moments", value) not in sink:
            wide = jnp.asarray(array).astype(wide_enough(array.dtype))
            sink["moments", value] = (jnp.mean(wide), jnp.var(wide))
        if value in self.whole and ("whole", value) not in sink:
            sink["whole", value] = jnp.asarray(array)


def _inline(run: _Interpreter, eqn: Any, inner: Frame, operands: Sequence[Any], sink: Sink) -> list[Any]:
    body = body_of(eqn.params)
    return run.run(inner, getattr(body, "consts", ()), operands, sink)


def _scan(run: _Interpreter, eqn: Any, inner: Frame, operands: Sequence[Any], sink: Sink) -> list[Any]:
    """The same loop, which hands out what is wanted of every round."""
    consts, carries = eqn.params["num_consts"], eqn.params["num_carry"]
    fixed, carry, xs = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]

    def body(state: Any, slices: Any) -> Any:
        own: Sink = {}
        out = run.run(inner, eqn.params["jaxpr"].consts, [*fixed, *state, *slices], own)
        return out[:carries], (out[carries:], own)

    options = {"length": eqn.params["length"], "reverse": eqn.params["reverse"]}
    last, (stacked, rounds) = jax.lax.scan(body, list(carry), list(xs), **options)
    sink.update({key: value for key, value in rounds.items() if key not in sink})
    return [*last, *stacked]


OPENERS: dict[str, Callable[..., list[Any]]] = {
    **dict.fromkeys(INLINE, _inline),
    "scan": _scan,
}
