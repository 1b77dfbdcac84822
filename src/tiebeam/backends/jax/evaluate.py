"""A second run of a program, in which chosen values are looked at where they are made.

Loops, branches and shards are run as the program has them; what is wanted of their inside is handed out beside
their results, reduced, so that nothing large is kept. A value that no round and no branch made has weight 0.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from tiebeam.backends.jax.lowering.calls import INLINE, body_of
from tiebeam.backends.jax.lowering.fold import bound
from tiebeam.backends.jax.lowering.lower import Frame

_spec: Callable[..., Any] = PartitionSpec  # whose class has no annotations
Sink = dict[tuple[str, int], Any]
"""("moments", id): weight, mean and variance of all elements, stacked; ("whole", id): weight and the elements."""


def wide_enough(dtype: Any) -> Any:
    """The dtype to add up in."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def explicit_mesh() -> Any:
    """The mesh of a program whose types say how its arrays lie, or None."""
    kinds: Any = getattr(jax.sharding, "AxisType", None)
    if kinds is None:  # releases without such types
        return None
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if kinds.Explicit in mesh.axis_types else None


def pooled(a: Any, b: Any) -> Any:
    """Weight, mean and variance of two samples together.

    Source: Chan, Golub and LeVeque, 1983.

    Example:
        >>> pooled(jnp.array([1.0, 0.0, 0.0]), jnp.array([1.0, 2.0, 0.0])).tolist()
        [2.0, 1.0, 1.0]
    """
    weight = a[0] + b[0]
    share = b[0] / jnp.maximum(weight, 1)
    apart = b[1] - a[1]
    spread = a[2] * (1 - share) + b[2] * share + apart**2 * share * (1 - share)
    return jnp.stack([weight, a[1] + apart * share, spread])


class Interpreter:
    """Runs a frame's jaxpr; frames inside it are opened only where something in them is wanted.

    Args:
        moments: Values of which mean and variance are wanted.
        whole: Values that are wanted element by element; of a loop, those of its last round.
        numbers: The same, but of every round.

    """

    def __init__(self, moments: frozenset[int], whole: frozenset[int], numbers: frozenset[int]) -> None:
        self.moments, self.numbers, self.whole = moments, numbers, whole | numbers
        self._homes: dict[int, tuple[int, ...]] = {}
        self.inside: tuple[int, ...] = ()
        self._mesh = explicit_mesh()

    def run(self, frame: Frame, consts: Sequence[Any], args: Sequence[Any], sink: Sink) -> list[Any]:
        """The results of a frame; what is wanted goes into `sink`."""
        jaxpr = frame.jaxpr
        values = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
        for var, value in values.items():
            self.take(frame.ids[var], value, sink)

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for position, eqn in enumerate(jaxpr.eqns):
            operands = [read(a) for a in eqn.invars]
            inner = frame.inside.get(position, ())
            if inner and any(map(self._holds, inner)):
                results = OPENERS[eqn.primitive.name](self, eqn, inner, operands, sink)
            else:
                results = bound(eqn, operands)
            several = results if eqn.primitive.multiple_results else [results]
            values.update(zip(eqn.outvars, several, strict=True))
            with eqn.ctx.manager:  # the mesh that the value is of
                for var, value in zip(eqn.outvars, several, strict=True):
                    self.take(frame.ids[var], value, sink)
        return [read(v) for v in jaxpr.outvars]

    def apart(self, frame: Frame, consts: Sequence[Any], args: Sequence[Any]) -> tuple[list[Any], Sink]:
        """Results of a body that another program runs, and what was seen in it."""
        own: Sink = {}
        return self.run(frame, consts, args, own), own

    def together(self, a: int, b: int) -> bool:
        """Whether two of `whole` were met in the same maps over devices."""
        return self._homes[a] == self._homes[b]

    def _told(self, array: Any) -> Any:
        """The value as all of the program can read it: where shardings are part of types, parts have others."""
        if self._mesh is None or self.inside:
            return array
        moved: Callable[..., Any] = jax.sharding.reshard  # which has no annotations
        return moved(array, NamedSharding(self._mesh, _spec()))

    def _holds(self, frame: Frame) -> bool:
        return any(frame.first <= v < frame.last for v in (*self.moments, *self.whole))

    def wants(self, value: int) -> bool:
        """Whether a value is looked at."""
        return value in self.moments or value in self.whole

    def take(self, value: int, array: Any, sink: Sink) -> None:
        """Look at a value, if it is wanted."""
        if value in self.moments and ("moments", value) not in sink:
            wide = jnp.asarray(array).astype(wide_enough(array.dtype))
            sink["moments", value] = self._told(jnp.stack([jnp.ones((), wide.dtype), jnp.mean(wide), jnp.var(wide)]))
        if value in self.whole and ("whole", value) not in sink:
            sink["whole", value] = (self._told(jnp.ones(())), self._told(jnp.asarray(array)))
            self._homes[value] = self.inside


def _merge(sink: Sink, more: Mapping[tuple[str, int], Any]) -> None:
    sink.update({key: found for key, found in more.items() if key not in sink})


def _empty(shapes: Any) -> Any:
    """Zeros of these shapes: weight 0."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def _later(before: Sink, after: Sink) -> Sink:
    """What two rounds say together: moments are pooled, of whole values the later round's count."""
    return {
        key: pooled(before[key], _total(found)) if key[0] == "moments" else _later_whole(before[key], found)
        for key, found in after.items()
    }


def _total(moments: Any) -> Any:
    """Rows of weight, mean and variance as one."""
    rows = jnp.reshape(moments, (-1, 3))
    return jax.lax.fori_loop(1, len(rows), lambda i, seen: pooled(seen, rows[i]), rows[0])


def _later_whole(before: Any, after: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(after[0] > 0, b, a), before, after)


def _inline(run: Interpreter, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any], sink: Sink) -> list[Any]:
    body = body_of(eqn.params)
    return run.run(inner[0], getattr(body, "consts", ()), operands, sink)


def _scan(run: Interpreter, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any], sink: Sink) -> list[Any]:
    """The same loop, which hands out what is wanted of every round."""
    consts, carries = eqn.params["num_consts"], eqn.params["num_carry"]
    fixed, carry, xs = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
    own_consts, length, back = eqn.params["jaxpr"].consts, eqn.params["length"], eqn.params["reverse"]
    if len(inner) == length:
        return _unrolled(run, eqn, inner, operands, sink)

    def body(state: Any, slices: Any) -> Any:
        out, own = run.apart(inner[0], own_consts, [*fixed, *state, *slices])
        return out[:carries], (out[carries:], own)

    last, (stacked, rounds) = jax.lax.scan(body, list(carry), list(xs), length=length, reverse=back)
    many = {k: v for k, v in rounds.items() if k[0] == "moments" or k[1] in run.numbers}
    _merge(sink, many | {k: _last(v, back) for k, v in rounds.items() if k not in many})
    return [*last, *stacked]


def _last(found: Any, back: bool) -> Any:
    """The last round's value; a scan of no rounds made none."""
    weight, array = found
    at = 0 if back else -1
    return (weight[at], array[at]) if len(weight) else (jnp.zeros(()), jnp.zeros(array.shape[1:], array.dtype))


def _unrolled(run: Interpreter, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any], sink: Sink) -> list[Any]:
    """A scan of which every round was followed by itself."""
    consts, carries = eqn.params["num_consts"], eqn.params["num_carry"]
    length, back, own_consts = eqn.params["length"], eqn.params["reverse"], eqn.params["jaxpr"].consts
    state, made = list(operands[consts : consts + carries]), []
    for number, frame in enumerate(inner):
        at = length - 1 - number if back else number
        out = run.run(
            frame, own_consts, [*operands[:consts], *state, *(x[at] for x in operands[consts + carries :])], sink
        )
        state = out[:carries]
        made.append(out[carries:])
    return [*state, *(jnp.stack(several[::-1] if back else several) for several in zip(*made, strict=True))]


def _while(run: Interpreter, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any], sink: Sink) -> list[Any]:
    """The same loop, which carries along what was seen so far; a number may be another one in every round."""
    conditions, consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    asked, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    questions, fixed = operands[:conditions], operands[conditions : conditions + consts]
    if len(inner) > 1:  # every round was followed by itself
        state = list(operands[conditions + consts :])
        for frame in inner:
            state = run.run(frame, body.consts, [*fixed, *state], sink)
        return state

    def round_of(state: Any) -> tuple[list[Any], Sink]:
        out, own = run.apart(inner[0], body.consts, [*fixed, *state])
        return out, {key: found for key, found in own.items() if key[1] not in run.numbers}

    def goes_on(carried: Any) -> Any:
        return jax.core.eval_jaxpr(asked.jaxpr, asked.consts, *questions, *carried[0])[0]

    def step(carried: Any) -> Any:
        state, seen = carried
        out, own = round_of(state)
        return out, _later(seen, own)

    start = list(operands[conditions + consts :])
    shapes = jax.eval_shape(round_of, start)[1]
    unseen = {k: jnp.zeros(3, s.dtype) if k[0] == "moments" else _empty(s) for k, s in shapes.items()}
    last, seen = jax.lax.while_loop(goes_on, step, (start, unseen))
    _merge(sink, seen)
    return list(last)


def _cond(run: Interpreter, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any], sink: Sink) -> list[Any]:
    """The branch that is taken tells what was seen; the others are of weight 0."""
    index, *args = operands
    branches = eqn.params["branches"]
    frames = {id(f.jaxpr): f for f in inner}
    if len(inner) == 1 and len(branches) > 1:
        return run.run(inner[0], next(b.consts for b in branches if id(b.jaxpr) in frames), args, sink)

    def one(branch: Any, frame: Frame) -> Callable[..., Any]:
        return lambda *given: run.apart(frame, branch.consts, given)

    bodies = [one(b, f) for b, f in zip(branches, inner, strict=True)]
    shapes = {key: s for body in bodies for key, s in jax.eval_shape(body, *args)[1].items()}

    def telling_all(body: Callable[..., Any]) -> Callable[..., Any]:
        def told(*given: Any) -> Any:
            out, own = body(*given)
            return out, {key: own[key] if key in own else _empty(shape) for key, shape in shapes.items()}

        return told

    out, seen = jax.lax.switch(index, [telling_all(b) for b in bodies], *args)
    _merge(sink, seen)
    return list(out)


def _shard_map(run: Interpreter, eqn: Any, inner: Sequence[Frame], operands: Sequence[Any], sink: Sink) -> list[Any]:
    """The same map, which hands out what every device saw, stacked."""
    params = eqn.params
    if "in_specs" not in params:  # older releases say it otherwise
        return list(bound(eqn, operands))
    axes = next(params[k] for k in ("newly_manual_axes", "manual_axes") if k in params)
    everywhere = _spec(tuple(sorted(axes)))

    def body(*local: Any) -> Any:
        out, own = run.apart(inner[0], (), list(local))
        return tuple(out), jax.tree.map(lambda x: x[None], own)

    alone = math.prod(params["mesh"].shape[a] for a in axes) == 1  # its part of an array is the array
    outside, run.inside = run.inside, run.inside if alone else (*run.inside, id(eqn))
    mapped = jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=(tuple(params["out_specs"]), everywhere),
        axis_names=set(axes),
        check_vma=params["check_vma"],
    )
    out, seen = mapped(*operands)
    run.inside = outside
    _merge(sink, jax.tree.map(lambda x: x[0], seen) if alone else seen)
    return list(out)


OPENERS: dict[str, Callable[..., list[Any]]] = {
    **dict.fromkeys(INLINE, _inline),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}
