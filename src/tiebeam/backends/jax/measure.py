"""Numbers that only exist when the program runs: one evaluation of the jaxpr gives all that the graph asks for.

The structure is known first, so exactly the values that matter are looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.backends.graphs.sizes import ROWS, Sizes
from tiebeam.backends.jax.evaluate import Interpreter, Sink
from tiebeam.backends.jax.lowering.lower import Frame


def evaluator(closed: Any, frame: Frame, wanted: Sizes) -> Callable[..., dict[str, Any]]:
    """A compiled function of the program's arguments that returns the measurements."""
    return jax.jit(lambda args: evaluated(frame, closed.consts, args, wanted))


def evaluated(frame: Frame, consts: Sequence[Any], args: Sequence[Any], wanted: Sizes) -> dict[str, Any]:
    """Run a program and return the measurements."""
    sink: Sink = {}
    interpreter = Interpreter(wanted.moments, wanted.compared, wanted.numbers)
    interpreter.run(frame, consts, args, sink)
    return figures(sink, wanted, interpreter.together)


def figures(sink: Sink, wanted: Sizes, together: Callable[[int, int], bool]) -> dict[str, Any]:
    """The measurements, of what was seen in a run.

    Args:
        together: Whether two values were met in the same maps over devices.
    """
    moments = {v: sink["moments", v] for v in wanted.moments if ("moments", v) in sink}
    cosines = {}
    for node, stream, rows in wanted.cosines:
        # Parts of arrays lie in another order than the arrays: only parts compare with parts.
        if any(("whole", v) not in sink for v in (stream, rows)) or not together(stream, rows):
            continue
        (weight, a), (other, b) = sink["whole", stream], sink["whole", rows]
        if (cosine := _cosine(a, b)) is not None:
            cosines[f"{node} {stream}"] = (jnp.min(weight) * jnp.min(other), cosine)
    numbers = {v: sink["whole", v] for v in wanted.numbers if ("whole", v) in sink}
    return {"moments": moments, "cosines": cosines, "numbers": numbers}


def numbers_of(found: Mapping[str, Any]) -> dict[int, Any]:
    """The numbers that were computed, of every round and device."""
    return {v: array for v, (weight, array) in found["numbers"].items() if np.all(np.asarray(weight) > 0)}


def facts_of(found: Mapping[str, Any], wanted: Sizes) -> dict[str, Any]:
    """The measurements as fields of `Graph`."""
    rms: dict[int, float] = {}
    logit_std: dict[int, float] = {}
    for v, rows in found["moments"].items():
        weights, means, variances = np.asarray(rows, np.float64).reshape(-1, 3).T
        if not weights.sum():
            continue  # no round and no branch made it
        mean = np.average(means, weights=weights)
        rms[v] = float(np.sqrt(np.average(variances + means**2, weights=weights)))
        if v in wanted.logits:
            logit_std[v] = float(np.sqrt(np.average(variances + (means - mean) ** 2, weights=weights)))
    cosine = {tuple(map(int, key.split())): float(c) for key, (weight, c) in found["cosines"].items() if weight > 0}
    return {"rms": rms, "logit_std": logit_std, "cosine": cosine}


def unmeasured(facts: Mapping[str, Any], wanted: Sizes) -> tuple[str, ...]:
    """Why some of what was wanted has no figure."""
    sizes = len(wanted.moments - facts["rms"].keys())
    cosines = len({(n, s) for n, s, _ in wanted.cosines} - facts["cosine"].keys())
    notes = []
    if sizes:
        notes.append(f"{sizes} sizes were not measured: no loop and no branch that ran makes these values")
    if cosines:
        notes.append(
            "kappa was not measured: the stream and the rows are of different shape, lie in the parts of a shard_map, "
            "or were not made"
        )
    return tuple(notes)


def _cosine(stream: jax.Array, rows: jax.Array) -> jax.Array | None:
    """Mean cosine of rows."""
    width = rows.shape[-1]
    if stream.shape[-1:] != (width,) or stream.size != rows.size or not rows.size:
        return None
    a, b = (x.reshape(-1, width)[:ROWS].astype(jnp.float32) for x in (stream, rows))
    norms = jnp.linalg.norm(a, axis=1) * jnp.linalg.norm(b, axis=1)
    return jnp.mean(jnp.sum(a * b, axis=1) / jnp.maximum(norms, 1e-30))
