"""What core asks of a pass that can be differentiated, and what a backend answers: numbers, never tensors."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tiebeam.core.reading.contract import contracted
from tiebeam.core.reading.provenance import IDS, INPUT, provenance
from tiebeam.core.reading.reads import find_reads
from tiebeam.core.reading.records import Use, build_uses
from tiebeam.core.reading.roles import Read
from tiebeam.core.ties import group_uses
from tiebeam.errors import InputError, TiebeamError
from tiebeam.ir import Graph, Node, Op

Role = Literal["lookup", "readout"]
ROLES: tuple[Role, ...] = ("lookup", "readout")


@dataclass(frozen=True, slots=True)
class RoleRead:
    """One execution of a role, placed in the graph as it was recorded.

    Attributes:
        table: Which table, in the order of `build_tables`.
        leaf: Key of the leaf that was read.
        node: Index of the node that reads it.
        chain: Indices of the nodes between leaf and read.
        ids: Of a lookup, the integers that rows are looked up at; None where they are not known.
    """

    table: int
    role: Role
    leaf: int
    node: int
    vocab_axis: int
    chain: frozenset[int]
    ids: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pass is to be asked.

    Attributes:
        uses: Records, as tables are built from them.
        reads: Every execution of a role that a gradient can flow through.
        logits: The returned value that holds the main table's logits, or None.
        ids: The integers whose rows became the main table's logits, or None.
        loss: The returned value that is the model's own loss, or None.
        main: Places in `build_tables` of the table that is looked up and of the one that is read out.
    """

    uses: tuple[Use, ...]
    reads: tuple[RoleRead, ...]
    logits: int | None
    ids: int | None
    loss: int | None
    main: tuple[int | None, int | None]

    def end(self, request: "Request") -> int | None:
        """What the loss is taken of; None where the caller's own function may take it of anything."""
        if request.loss is not None:
            return None
        return self.logits if self.loss is None else self.loss


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """The caller's `loss=`, of this batch."""

    function: Callable[[Any, Any], Any]
    batch: Any

    def __call__(self, output: Any) -> Any:
        """The loss of what the model returned."""
        return called(self.function, output, self.batch)


def called(loss: Callable[[Any, Any], Any], output: Any, batch: Any) -> Any:
    """What the caller's `loss=` returns.

    Raises:
        InputError: It does not run on these two.
    """
    try:
        return loss(output, batch)
    except TiebeamError:
        raise
    except Exception as error:
        raise InputError(
            f"loss= does not run: {type(error).__name__}: {error}",
            got=f"called with what the model returned, a {type(output).__name__}, and the batch, a "
            f"{type(batch).__name__}",
            expected="a function of these two, in this order, that gives one float of the framework's own",
            hint="loss=lambda output, batch: ..., which picks out of both what it compares",
        ) from error


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asks.

    Attributes:
        loss: The caller's own loss, a function of what the model returned.
        labels: Right tokens as the batch holds them.
        mask: False at positions that count for nothing.
        keep: Hand the gradients themselves over too.
        gram: The tables' (width, width) Gram matrices are wanted.
        since: Earlier values of tables, by any of their names, to compare with.
        optimizer: Whose state tells which rows got no gradient so far.
    """

    loss: OwnLoss | None = None
    labels: npt.NDArray[Any] | None = None
    mask: npt.NDArray[Any] | None = None
    keep: bool = False
    gram: bool = False
    since: Mapping[str, Any] | None = None
    optimizer: Any = None


@dataclass(frozen=True, slots=True)
class Sent:
    """What one role sends to a table.

    Attributes:
        norm: Frobenius norm of the gradient.
        rows: Rows that it reaches.
        grad: The gradient, (vocab, width), in the framework's own kind, where it was asked for.
    """

    norm: float
    rows: int
    grad: Any = None


@dataclass(frozen=True, slots=True)
class Drift:
    """Where a table went since an earlier time.

    Training moves a row against its gradient, so a table that drifts towards the output space moves along the
    readout's descent: `readout` is near 1, `lookup` near 0 (Lopardo et al., Weight Tying Biases Token Embeddings
    Towards the Output Space, 2026).

    Attributes:
        moved: Frobenius norm of the change over that of the earlier table.
        lookup, readout: Cosine of the change with minus the role's present gradient; None where either is zero.
        still_rows: Rows that have not changed at all.
    """

    moved: float
    lookup: float | None
    readout: float | None
    still_rows: int


@dataclass(frozen=True, slots=True)
class Passed:
    """What a backend answers.

    Attributes:
        loss: Unit: nats, where it is a cross entropy.
        targets: Where the right tokens came from.
        sent: By table and role; absent where the backend could not tell.
        cosine: By table, of its two roles' gradients.
        unaccounted: By table, the share of its gradient that no role accounts for.
        grams: By table, where they were asked for.
        drift: By table, where earlier values were given.
        silent: By table, rows that the optimizer has seen no gradient of, where it was given and tells.
        notes: What could not be told, in words.
    """

    loss: float
    targets: str
    own_logit: float | None = None
    own_rank: float | None = None
    sent: Mapping[tuple[int, Role], Sent] = field(default_factory=dict)
    cosine: Mapping[int, float] = field(default_factory=dict)
    unaccounted: Mapping[int, float] = field(default_factory=dict)
    grams: Mapping[int, npt.NDArray[np.float64]] = field(default_factory=dict)
    drift: Mapping[int, Drift] = field(default_factory=dict)
    silent: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def wanted(recorded: Graph) -> Wanted:
    """Read a recorded pass: who sends a gradient where, and which values are logits, ids and loss."""
    graph = contracted(recorded)
    flags = provenance(graph)
    reads = find_reads(graph, flags)
    uses = build_uses(graph, flags, reads)
    groups = group_uses(uses)
    table_of = {leaf.key: i for i, g in enumerate(groups) for leaf in g.leaves}
    marked: list[tuple[Role, Read]] = [("lookup", r) for r in reads.lookups]
    marked += [("readout", r) for r in reads.readouts]
    placed = tuple(
        _placed(recorded, graph, flags, table_of[r.source.leaf.key], role, r)
        for role, r in marked
        if r.source.leaf.key in table_of
    )
    sizes = [(bool(g.lookups and g.readouts), g.shape[0] * g.shape[1]) for g in groups]
    read_out = max((i for i, g in enumerate(groups) if g.readouts), key=lambda i: sizes[i], default=None)
    looked_up = max((i for i, g in enumerate(groups) if g.lookups), key=lambda i: sizes[i], default=None)
    if read_out is not None and groups[read_out].lookups:
        looked_up = read_out
    outs = [r for r in reads.readouts if read_out is not None and table_of.get(r.source.leaf.key) == read_out]
    made = _descendants(graph, {r.node.output for r in outs})
    vocabs = {r.vocab for r in outs}
    logits = next((v for v in graph.outputs if v in made and _is_logits(graph, v, vocabs)), None)
    ids = None if logits is None else _ids(graph, flags, reads.lookups, graph.values[logits].shape[:-1])
    loss = next((v for v in graph.outputs if v in made and v in graph.attached and graph.values[v].size == 1), None)
    return Wanted(tuple(uses), placed, logits, ids, loss, (looked_up, read_out))


def uses_of(graph: Graph) -> tuple[Use, ...]:
    """Records alone, as `Wanted.uses`: of a graph that was measured since."""
    graph = contracted(graph)
    flags = provenance(graph)
    return tuple(build_uses(graph, flags, find_reads(graph, flags)))


def _placed(recorded: Graph, graph: Graph, flags: list[int], table: int, role: Role, read: Read) -> RoleRead:
    node = read.node
    ids = next(iter(_integers(graph, flags, read)), None) if role == "lookup" else None
    chain = set(_chain(graph, flags, [v for v in node.inputs if v != read.other]))
    written = recorded.nodes[node.index]
    if written.op is not Op.DOT and node.op is Op.DOT:  # a product written as multiply and sum: the first is on the way
        chain.add(recorded.values[written.inputs[0]].producer)
    return RoleRead(table, role, read.source.leaf.key, node.index, read.vocab_axis, frozenset(chain), ids)


def _chain(graph: Graph, flags: list[int], start: Collection[int]) -> Collection[int]:
    """Nodes that the table goes through before it is read: no input of the model reaches them."""
    stack, seen = list(start), set[int]()
    while stack:
        node = graph.producer(stack.pop())
        if node is None or node.index in seen or flags[node.output] & INPUT:
            continue
        seen.add(node.index)
        stack += node.inputs
    return seen


def _descendants(graph: Graph, start: Collection[int]) -> set[int]:
    found = set(start)
    for node in graph.nodes:
        if found.intersection(node.inputs):
            found.update(node.outputs)
    return found


def _is_logits(graph: Graph, value: int, vocabs: Collection[int]) -> bool:
    v = graph.values[value]
    return len(v.shape) >= 2 and v.shape[-1] in vocabs and not v.integral


def _ids(graph: Graph, flags: list[int], lookups: Collection[Read], rows: tuple[int, ...]) -> int | None:
    """The integers that were looked up for just these rows: a decoder's, which come last, not an encoder's."""
    found = None
    for read in lookups:
        shaped = (_shaped(graph, flags, v, rows) for v in _integers(graph, flags, read))
        found = next((v for v in shaped if v is not None), found)
    return found


def _shaped(graph: Graph, flags: list[int], value: int, rows: tuple[int, ...]) -> int | None:
    """The integers of this shape that a value is an arrangement of: some gathers want an axis more, loops have less."""
    while graph.values[value].shape != rows:
        node = graph.producer(value)
        if node is None or node.op not in (Op.LAYOUT, Op.CAST, Op.UPDATE):
            return None
        before = counted_from_the_end(graph, node) if node.op is Op.UPDATE else node.inputs[0]
        if before is None or not flags[before] & IDS:
            return None
        value = before
    return value


def counted_from_the_end(graph: Graph, node: Node) -> int | None:
    """Of integers that were added something to where they are negative: what they were."""
    if node.op is not Op.UPDATE or len(node.inputs) < 2:
        return None
    added, before = graph.producer(node.inputs[0]), node.inputs[1]
    return before if added is not None and added.op is Op.ADD and added.inputs[0] == before else None


def _integers(graph: Graph, flags: list[int], read: Read) -> list[int]:
    """What rows are looked up at; of a one-hot matrix, what it was made of, as the caller gave it."""
    if graph.values[read.other].integral:
        return [read.other]
    behind = {v for i in _behind(graph, read.other) for v in graph.nodes[i].inputs}
    return [v for v in graph.inputs if v in behind and flags[v] & IDS]


def _behind(graph: Graph, value: int) -> set[int]:
    """Indices of the nodes that a value was computed by."""
    stack, seen = [value], set[int]()
    while stack:
        node = graph.producer(stack.pop())
        if node is not None and node.index not in seen:
            seen.add(node.index)
            stack += node.inputs
    return seen
