"""Looking at a model once: trace, roles, factors; the part that inspecting and initialising share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiebeam.api.refusals import check_filled, refused_inputs
from tiebeam.backends import resolve
from tiebeam.backends.protocol import Described, Glancing, Model, RefusedError
from tiebeam.checkpoints import example_inputs
from tiebeam.checkpoints.declared import Declared, declared_by
from tiebeam.core.collection import no_collection
from tiebeam.core.facts import Table
from tiebeam.core.reading.arithmetic import arithmetic_in_doubt
from tiebeam.core.reading.contract import contracted
from tiebeam.core.reading.provenance import provenance
from tiebeam.core.reading.reads import find_reads
from tiebeam.core.reading.records import Use, build_uses, confirm, could_be_a_size, doubtful, unconfirmed
from tiebeam.core.tables import build_tables
from tiebeam.errors import InputError, TraceError
from tiebeam.ir import Graph

OTHER_SEED = 0x7EA  # of the confirming pass: what is drawn must not come out the same


@dataclass(frozen=True)
class Look:
    """What one look gave.

    Attributes:
        traced: The backend's trace, whose `graph` core has read.
        uses: Records with their reads, in order of execution.
    """

    model: Model
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    traced: Any
    uses: tuple[Use, ...]
    declared: Declared | None
    tables: tuple[Table, ...]

    def again(self, *, logits: bool = False, seed: int | None = None) -> "Look":
        """Another pass over the same inputs, after the weights have changed."""
        return _read(self.model, self.args, self.kwargs, self.declared, logits=logits, like=self.uses, seed=seed)


def look(model: Any, inputs: Any = None, *, params: Any = None, logits: bool = False) -> Look:
    """Run the model once (twice, where a number in the program could be a size of the inputs).

    Raises:
        BackendError: No framework's model.
        InputError: The model refused the inputs, they are empty, or none could be made.
        TraceError: The pass cannot be followed without values.
    """
    backend = resolve(model, params)
    if inputs is None:
        inputs = _example(backend)
    args, kwargs = backend.arguments(inputs)
    with no_collection():
        seen = _read(backend, args, kwargs, declared_by(model), logits=logits)
    if any(table.vocab for table in seen.tables):  # of a table without rows there is no token to give
        check_filled("the inputs are", args, kwargs)
    return seen


def _read(
    backend: Model,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    declared: Declared | None,
    *,
    logits: bool,
    like: Sequence[Use] = (),
    seed: int | None = None,
) -> Look:
    traced = _traced(backend, args, kwargs, logits=logits, seed=seed)
    uses = _uses(traced)
    if like:
        uses = _as_before(uses, like)
    elif any(doubtful(u) for u in uses) or traced.items:
        uses = _checked(backend, traced, uses, args, kwargs)

    def declares(a: str, b: str) -> bool:
        return declared is not None and bool(declared.tied) and (declared.names(a, b) or not declared.keys)

    graph = traced.graph
    tables = build_tables(uses, backend.weights(traced), declares, meta=graph.meta, repeats=graph.repeats)
    return Look(backend, args, kwargs, traced, tuple(uses), declared, tables)


def _uses(traced: Any) -> list[Use]:
    graph = contracted(traced.graph)
    flags = provenance(graph)
    return build_uses(graph, flags, find_reads(graph, flags))


def _traced(
    backend: Model, args: tuple[Any, ...], kwargs: dict[str, Any], *, logits: bool = False, seed: int | None = None
) -> Any:
    try:
        return backend.trace(args, kwargs, logits=logits, seed=seed)
    except RefusedError as refused:
        raise refused_inputs(backend, args, kwargs, refused) from (refused.__cause__ or refused)


def _checked(backend: Model, first: Any, uses: list[Use], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Use]:
    """Factors that a pass over other inputs repeats; the others are not constants."""
    why, graph = "the inputs have no axis that could be shorter", first.graph
    *shorter, same = backend.shorter(args, kwargs) or [(args, kwargs)]
    if shorter and _same_at_a_glance(backend, first, uses, shorter[0]):
        return uses
    for other_args, other_kwargs in shorter:
        try:
            traced = backend.trace(other_args, other_kwargs, seed=OTHER_SEED, measure=False)
        except (RefusedError, TraceError) as refused:  # some models take one length only
            why = _in_a_line(refused)
            continue
        kept = confirm(uses, _uses(traced))
        sizes = _lengths(graph)
        if sizes != _lengths(traced.graph):
            return kept
        # The batch alone is another one: a length may still be what a factor came from.
        return [u if not could_be_a_size(u, sizes) else unconfirmed([u], why)[0] for u in kept]
    return _of_one_length(backend, uses, same, why)


def _in_a_line(refused: Exception) -> str:
    """What a pass failed of. The error itself is held nowhere: its frames lead here, and would live in a circle."""
    error = refused.__cause__ or refused
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _same_at_a_glance(backend: Model, first: Any, uses: list[Use], other: Any) -> bool:
    """Whether the backend sees for less than a trace costs that every number in doubt is the same for other inputs."""
    if first.items or not isinstance(backend, Glancing):
        return False
    expected = arithmetic_in_doubt(first.graph, uses)
    return expected is not None and backend.does_the_same(first, expected, *other)


def _lengths(graph: Graph) -> set[int]:
    """Sizes of the inputs' axes behind the first."""
    return {n for v in graph.inputs for n in graph.values[v].shape[1:]}


def _of_one_length(backend: Model, uses: list[Use], same: Any, why: str) -> list[Use]:
    """Where every other length was refused: other values at this one, and no factor that a size could give."""
    try:
        traced = backend.trace(*same, seed=OTHER_SEED, measure=False)
    except (RefusedError, TraceError):
        return unconfirmed(uses, why)
    graph = traced.graph
    sizes = {n for v in graph.inputs for n in graph.values[v].shape}
    kept = confirm(uses, _uses(traced))
    return [u if not could_be_a_size(u, sizes) else unconfirmed([u], why)[0] for u in kept]


def _as_before(uses: list[Use], like: Sequence[Use]) -> list[Use]:
    """What an earlier look found to be no constant is none now."""
    unknown = {u.site: u.fact.notes for u in like if u.fact.factor is None}
    return [
        replace(u, fact=replace(u.fact, factor=None, notes=unknown[u.site])) if u.site in unknown else u for u in uses
    ]


def _example(backend: Model) -> Any:
    """Inputs by what the model knows of itself, else from its config, else from its signature."""
    if isinstance(backend, Described):
        bound = backend.vocab_bound()
        made = backend.example(lambda name, shape, dtype: example_inputs.of_kind(name, shape, dtype, vocab=bound))
        if made is not None:
            return made
    config = getattr(backend.model, "config", None)
    if config is not None:
        made = example_inputs.from_config(config, backend.forward)
        if made is not None:
            return made
    bound = backend.vocab_bound()
    if bound is None:
        raise InputError(
            f"no example inputs can be made for {backend.name}",
            got="no config and no matrix to bound token ids by",
            hint="pass inputs=",
        )
    return example_inputs.from_signature(backend.forward, vocab=bound)
