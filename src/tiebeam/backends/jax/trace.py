"""One application of a JAX model as core's graph: its jaxpr, lowered; then measured, where there are values."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tiebeam.backends.graphs.building import known
from tiebeam.backends.graphs.sizes import Sizes, sizes_of
from tiebeam.backends.jax.kinds.held import Held, Known, Marked, Naming
from tiebeam.backends.jax.kinds.tree import Returned, Slot, Tree, is_abstract, is_key
from tiebeam.backends.jax.lowering.fold import equal_or_known
from tiebeam.backends.jax.lowering.lower import Frame, Lowering, Path
from tiebeam.backends.jax.measure import evaluator, facts_of, numbers_of, unmeasured
from tiebeam.backends.protocol import RefusedError
from tiebeam.core.measuring.passes import Wanted as Asked
from tiebeam.core.measuring.passes import wanted
from tiebeam.errors import InputError, TiebeamError, TraceError
from tiebeam.ir import Graph, Leaf, Op, Origin


@dataclass(frozen=True)
class Trace:
    """A traced pass: the graph, and the place of each leaf's array among the model's.

    Attributes:
        places: Position of a leaf's array among `Held.slots`, by `Leaf.key`.
        items: No number can be read out of a traced array.
    """

    graph: Graph
    places: Mapping[int, int]
    items: bool = False


@dataclass
class Program:
    """The jaxpr of a model on inputs of one kind; it outlives the arrays, so another pass costs no tracing.

    Attributes:
        inputs: Arrays among the inputs; `names`: where they stand.
        output: What the model returned, with other arrays in it.
        naming: Tells modules by the jaxpr's name stacks.
        compiled: Evaluators by what they measure, and steps by what they are asked.
        seen: Graphs by the numbers that they depend on.
    """

    closed: Any
    inputs: list[Any]
    names: list[str]
    output: Callable[[Sequence[Any]], Any]
    naming: Naming
    compiled: dict[Hashable, Any] = field(default_factory=dict)
    seen: dict[Hashable, "Lowered"] = field(default_factory=dict)


def program_of(held: Held, arrays: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
    """Trace the model.

    Raises:
        InputError: The ids among the inputs are none.
        RefusedError: The model raised; the cause is chained.
        TraceError: It asks for the value of an array.
    """
    given = Tree((args, dict(kwargs)))
    _check_filled(held, given)

    returned: list[Returned] = []

    def flat(own: list[Any], inputs: list[Any]) -> list[Any]:
        again_args, again_kwargs = given.rebuilt(inputs)
        result = Returned(held.call(own, again_args, again_kwargs))
        arrays, result.arrays = result.arrays, []
        returned.append(result)
        return arrays

    try:
        closed = jax.make_jaxpr(flat)(list(arrays), given.arrays)
    except TiebeamError:
        raise
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise TraceError(
            f"{held.name} cannot be traced: it asks for the value of an array",
            got=str(error).splitlines()[0],
            expected="a function of arrays that jax.jit accepts",
            hint="branch with jax.lax.cond, compute with jax.numpy, or pass the value as a Python number",
        ) from error
    except Exception as error:
        raise RefusedError from error
    naming = held.naming if isinstance(held, Known) else held
    return Program(closed, given.arrays, given.names, returned[-1].rebuilt, naming)


def _check_filled(held: Held, given: Tree) -> None:
    """JAX leaves out a lookup of no rows, so no table would be found in it."""
    pairs = zip(given.arrays, given.names, strict=True)
    ids = {name: tuple(a.shape) for a, name in pairs if str(a.dtype).startswith(("int", "uint"))}
    if ids and not any(math.prod(shape) for shape in ids.values()):
        raise InputError(
            f"there is nothing to look up in the inputs of {held.name}, and JAX leaves out what reads nothing",
            got=", ".join(f"{name or 'ids'} of shape {shape}" for name, shape in ids.items()),
            expected="token ids, at least one",
            hint="pass a batch that is not empty",
        )


@dataclass(frozen=True)
class Lowered:
    """A program as core's graph, not measured yet.

    Attributes:
        frame: The execution of its jaxpr, by which values are found again.
        paths: Of each node the equation that it stands for.
        settled: Numbers had to be computed from arrays for it.
    """

    graph: Graph
    places: Mapping[int, int]
    frame: Frame
    paths: Sequence[Path]
    settled: bool = False

    @cached_property
    def asked(self) -> Asked:
        """What core asks of a pass that is differentiated."""
        return wanted(self.graph)

    @cached_property
    def sizes(self) -> Sizes:
        """What core asks of a pass that is measured, the std of logits included."""
        return sizes_of(self.graph, logits=True)


def seen_again(program: Program, held: Held, arrays: Sequence[Any]) -> Lowered:
    """As `lowered`; the same one as before where no number that it depends on has changed."""
    if any(map(is_abstract, [*arrays, *program.inputs])):
        return lowered(program, held, arrays)
    key = tuple(tuple((n, np.asarray(f).tobytes()) for n, f in _leaf_facts(a).items()) for a in arrays if not is_key(a))
    found = program.seen.get(key)
    if found is None:
        found = lowered(program, held, arrays)
        if not found.settled:
            program.seen.clear()
            program.seen[key] = found
    return found


def lowered(program: Program, held: Held, arrays: Sequence[Any]) -> Lowered:
    """Lower a program.

    Args:
        arrays: The model's arrays now.
    """
    meta = any(map(is_abstract, [*arrays, *program.inputs]))
    naming = program.naming
    low = Lowering(naming.where, naming.learn if isinstance(naming, Marked) else None, values=not meta)
    leaves, places = _leaves(low, held.slots, arrays)
    inputs = [_input(low, a, n) for a, n in zip(program.inputs, program.names, strict=True)]
    consts = [low.constant(c) for c in program.closed.consts]
    frame = low.enter(program.closed.jaxpr, consts, [*leaves, *inputs])
    outputs = low.results(frame)
    _note_closed_over(low)
    settled = not meta and _settle_numbers(low, program, frame, [*arrays, *program.inputs])
    floats = frozenset(v for v in outputs if low.drafts[v].dtype.startswith(("float", "bfloat")))
    graph = low.graph(
        inputs=tuple(v for v in inputs if low.drafts[v].origin is Origin.INPUT), outputs=outputs, attached=floats,
        repeats=repeats_in(program.inputs), meta=meta,
    )  # fmt: skip
    return Lowered(graph, places, frame, low.paths, settled)


def trace(program: Program, held: Held, arrays: Sequence[Any], *, logits: bool, measure: bool) -> Trace:
    """Lower a program and measure what core will ask for.

    Args:
        arrays: The model's arrays now.
        logits: Also measure the std of logits.
        measure: False: the structure alone.
    """
    low = lowered(program, held, arrays)
    graph = low.graph
    if graph.meta or not measure:
        return Trace(graph, low.places)
    wanted = sizes_of(graph, logits=logits)
    return Trace(measured(graph, _measured(program, low.frame, wanted, [*arrays, *program.inputs]), wanted), low.places)


def measured(graph: Graph, found: Any, wanted: Sizes) -> Graph:
    """The graph with what an evaluator found."""
    facts = facts_of(found, wanted)
    return replace(graph, **facts, notes=(*graph.notes, *unmeasured(facts, wanted)))


def _measured(program: Program, frame: Frame, wanted: Sizes, args: list[Any]) -> Any:
    # Ids follow from the jaxpr alone, so an evaluator serves every later pass of the program.
    if wanted not in program.compiled:
        program.compiled[wanted] = evaluator(program.closed, frame, wanted)
    return program.compiled[wanted](args)


def _leaves(low: Lowering, slots: Sequence[Slot], arrays: Sequence[Any]) -> tuple[list[int], dict[int, int]]:
    ids, places = [], {}
    for place, (slot, array) in enumerate(zip(slots, arrays, strict=True)):
        if is_key(array):
            ids.append(low.add(array.shape, array.dtype, Origin.RANDOM, random=True))
            continue
        trainable = slot.trainable and slot.parameter and slot.floating
        leaf = Leaf(slot.names, len(low.drafts), -1, (0, 0), trainable, slot.parameter)
        places[leaf.key] = place
        facts = {} if is_abstract(array) else _leaf_facts(array)
        ids.append(low.add(array.shape, array.dtype, Origin.LEAF, leaf=leaf, leafy=True, **facts))
    return ids, places


def _leaf_facts(array: Any) -> dict[str, Any]:
    """Elements of a tiny array; of a vector, the number that all its elements equal, if so."""
    if not getattr(array, "is_fully_addressable", True):
        return {}
    vector = int(np.prod(array.shape)) == max(array.shape, default=1)
    return equal_or_known(array) if vector else known(array)


def _input(low: Lowering, array: Any, name: str) -> int:
    """An input; a random key is none, in whichever of its two forms."""
    old_key = "rngs" in name.split(".") and str(array.dtype) == "uint32"
    if is_key(array) or old_key:
        return low.add(array.shape, array.dtype, Origin.RANDOM, random=True)
    return low.add(array.shape, jax.dtypes.canonicalize_dtype(array.dtype), Origin.INPUT, given=True)


def _note_closed_over(low: Lowering) -> None:
    """Say which matrices of the program's own are read like tables: what is closed over is no parameter."""
    for node in low.nodes:
        read = {Op.GATHER: node.inputs[:1], Op.DOT: node.inputs[:2]}.get(node.op, ())
        for draft in (low.drafts[low.behind(v)] for v in read):
            matrix = sum(n != 1 for n in draft.shape) == 2 and draft.dtype.startswith(("float", "bfloat"))
            if draft.origin is Origin.CONSTANT and draft.producer < 0 and matrix:
                low.notes[
                    f"the program reads an array of its own of shape {draft.shape} by {node.label}: it is closed over, "
                    "no parameter and so no table; pass it among the params"
                ] = None


def _settle_numbers(low: Lowering, program: Program, frame: Frame, args: list[Any]) -> bool:
    """Compute the one-element values that no input reaches and that are more than a few steps from a number.

    Returns:
        Whether there were any.
    """
    used = {v for node in low.nodes for v in node.inputs}
    unknown = [
        v
        for v, d in enumerate(low.drafts)
        if d.number is None and d.origin is Origin.NODE and not d.varying and int(np.prod(d.shape)) == 1 and v in used
    ]
    if not unknown:
        return False
    found = _measured(program, frame, Sizes(numbers=frozenset(unknown)), args)
    for v, array in numbers_of(found).items():
        host = np.asarray(array)
        if host.size and host.dtype.kind != "c" and bool((host == host.flat[0]).all()):
            low.settle(v, host.reshape(-1)[:1].reshape(low.shape(v)))
    return True


def repeats_in(inputs: Sequence[Any]) -> float | None:
    """Share of positions whose next token is the same token, in the first integer input."""
    for a in inputs:
        if not is_key(a) and np.dtype(a.dtype).kind in "iu" and a.ndim >= 1 and a.shape[-1] > 1:
            if is_abstract(a) or 0 in a.shape:
                return None
            host = np.asarray(a)
            return float((host[..., 1:] == host[..., :-1]).mean())
    return None
