"""Numbers that only exist when the program runs: one run of just the part of the graph that they need.

The structure is known first, so exactly the values that matter are looked at, and they are reduced inside the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tiebeam.backends.graphs.sizes import ROWS, Sizes
from tiebeam.backends.keras.tensorflow.graph.flatten import BODIES
from tiebeam.backends.keras.tensorflow.graph.program import Program
from tiebeam.backends.protocol import RefusedError
from tiebeam.core.together import Together


class Evaluator:
    """What to compute of which tensors, and what the results are of.

    Args:
        names: The tensors that values are; "" for those that are none.
    """

    def __init__(self, wanted: Sizes, names: Mapping[int, str]) -> None:
        self.names = {v: n for v, n in names.items() if n}
        self.moments = [v for v in sorted(wanted.moments) if v in self.names]
        self.numbers = [v for v in sorted(wanted.numbers) if v in self.names]
        self._pairs = [c for c in wanted.cosines if c[1] in self.names and c[2] in self.names]
        self.cosines: list[tuple[int, int]] = []
        ids = (*self.moments, *self.numbers, *(v for _, *pair in self._pairs for v in pair))
        self.tensors = list(dict.fromkeys(self.names[v] for v in ids))
        self.function: Any = None

    def read(self, found: Sequence[Any]) -> list[Any]:
        """Add the reductions of the tensors to the graph."""
        value = dict(zip(self.tensors, found, strict=True))
        out: list[Any] = []
        for v in self.moments:
            wide = _wide(value[self.names[v]])
            out += [tf.reduce_mean(wide), tf.math.reduce_variance(wide)]
        self.cosines.clear()
        for node, stream, rows in self._pairs:
            made = _cosine(value[self.names[stream]], value[self.names[rows]])
            if made is not None:
                self.cosines.append((node, stream))
                out.append(made)
        return out + [tf.identity(value[self.names[v]]) for v in self.numbers]


def measured(program: Program, wanted: Sizes, names: Mapping[int, str]) -> dict[str, Any]:
    """Run the program for what is wanted.

    Args:
        names: The tensors that values are; "" for those that are none.
    """
    made = program.compiled.get(wanted)  # ids follow from the graph alone, so an evaluator serves every later pass
    if made is None:
        made = program.compiled[wanted] = Evaluator(wanted, names)
        made.function = program.function(made.tensors, made.read) if made.tensors else None
    results = iter([np.asarray(t) for t in run(program, made.function or program.traced)] if made.tensors else [])
    return {
        "moments": {v: (float(next(results)), float(next(results))) for v in made.moments},
        "cosines": {at: float(next(results)) for at in made.cosines},
        "numbers": {v: next(results) for v in made.numbers},
    }


def _wide(tensor: Any) -> Any:
    """In the dtype to add up in."""
    return tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)


def _cosine(stream: Any, rows: Any) -> Any:
    """Mean cosine of rows, or None where the two are not of one size."""
    width = rows.shape[-1]
    if width is None or stream.shape[-1:] != rows.shape[-1:]:
        return None
    if not stream.shape.num_elements() or stream.shape.num_elements() != rows.shape.num_elements():
        return None
    a, b = (tf.cast(tf.reshape(x, (-1, width))[:ROWS], tf.float32) for x in (stream, rows))
    norms = tf.norm(a, axis=1) * tf.norm(b, axis=1)
    return tf.reduce_mean(tf.reduce_sum(a * b, axis=1) / tf.maximum(norms, 1e-30))


def facts_of(found: Mapping[str, Any], wanted: Sizes) -> dict[str, Any]:
    """The measurements as fields of `Graph`."""
    rms = {v: float(np.sqrt(variance + mean**2)) for v, (mean, variance) in found["moments"].items()}
    logit_std = {v: float(np.sqrt(variance)) for v, (_, variance) in found["moments"].items() if v in wanted.logits}
    return {"rms": rms, "logit_std": logit_std, "cosine": found["cosines"]}


def shapes_of(program: Program) -> dict[str, tuple[int, ...]]:
    """Shapes that are not known before the program runs, by tensor."""
    known: dict[str, tuple[int, ...]] | None = program.compiled.get("shapes")
    if known is None:
        unknown = unknown_shapes(program)
        known = program.compiled["shapes"] = {}
        if unknown:  # else nothing is to be run, and the graph may still be in the making
            # What the opened function returns is the last of its nodes once more, and stands in no definition.
            defined = {node.name for node in program.definition.node}
            unknown = [name for name in unknown if name.rpartition(":")[0] in defined]
            function = program.function(unknown, lambda found: [tf.shape(t) for t in found])
            shapes = [tuple(np.asarray(t).tolist()) for t in run(program, function)]
            known.update(zip(unknown, shapes, strict=True))
    return known


def unknown_shapes(program: Program) -> list[str]:
    """Tensors whose shapes only a run tells."""
    return [
        t.name
        for operation in program.graph.get_operations()
        for t in operation.outputs
        if not t.shape.is_fully_defined() and t.dtype not in (tf.resource, tf.variant)
    ]


def run(program: Program, function: Any, *more: Any) -> Any:
    """Run a function of a program's inputs once; what the program writes itself is put back.

    Raises:
        RefusedError: An operation does not take its inputs, as a lookup does not take ids that no row has.
    """
    try:
        with _put_back(program), _AS_WRITTEN:
            return function(*program.inputs, *more)
    except tf.errors.InvalidArgumentError as error:
        raise RefusedError from ValueError(_said(error))


def _said(error: Any) -> str:
    """What an operation said, without the places in the graph that stand around it."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("[[")), "an invalid argument")


@contextmanager
def _unoptimized() -> Iterator[None]:
    """Nothing is optimised: that would take longer than this one run."""
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


_AS_WRITTEN = Together(_unoptimized)


#: Take a variable's handle and leave the variable as it is; what else takes one may write.
READS = frozenset(
    ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", *BODIES)
)


@contextmanager
def _put_back(program: Program) -> Iterator[None]:
    """Give variables that the program writes itself what they held before: counters, caches, states of generators."""
    inside = {inner.name: outer for outer, inner in program.graph.captures if inner.dtype == tf.resource}
    written = {
        t.name
        for operation in program.graph.get_operations()
        if operation.type not in READS
        for t in operation.inputs
        if t.name in inside
    }
    variables = [v for name in written if (v := program.variables.get(id(inside[name]))) is not None]
    kept = [(v, tf.identity(v.read_value())) for v in variables]
    try:
        yield
    finally:
        for variable, value in kept:
            variable.assign(value)
