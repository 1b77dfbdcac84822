"""A model's graph split by hand: each role reads a tensor of its own in the place of the table's variable.

What happens to a table stands in the graph: a read of the variable, casts and transposes, then a lookup or a product.
That way is copied for each role. Gradients with respect to what the copies start from are the roles' own; what moves in
one of them moves in that role alone.

The model is called once more for it, into a graph of ours: a gradient that was written by hand holds on to tensors of
the very graph that its forward pass is in, so no copy of that graph could be differentiated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tiebeam.backends.keras.tensorflow.graph.program import Program, needed
from tiebeam.backends.keras.tensorflow.trace import Placed
from tiebeam.core.measuring.passes import Role, RoleRead
from tiebeam.errors import InputError

ALIASES = frozenset(("ReadVariableOp", "Identity", "StopGradient", "PreventGradient"))
"""What stands between a variable and its use without making another value."""

BY_HAND = "_gradient_op_type"
"""What marks the end of a function whose gradient was written by hand: its gradients go to what this node takes."""

Key = tuple[int, Role]
"""A leaf, in one role."""
Moved = Callable[..., Any]
Again = Callable[[Sequence[Any]], Sequence[str]]


@dataclass(frozen=True)
class Cut:
    """Where a role takes in what a table has become.

    Attributes:
        key: The leaf and the role.
        node: The operation's name; `slot`: which of its inputs.
        way: Names of the operations between the variable and it.
    """

    key: Key
    node: str
    slot: int
    way: frozenset[str]


@dataclass
class Split:
    """The graph of a program, to be split.

    Attributes:
        again: Calls the model on tensors of the graph at hand; the names of what it returned.
        cuts: Where roles read.
        handles: Of each leaf, the node that its variable's handle is.
        lost: Reads that could not be given a tensor of their own: those inside of a branch or a loop, and operations
            that read a table twice.
    """

    program: Program
    placed: Placed
    again: Again
    cuts: list[Cut] = field(default_factory=list)
    handles: dict[int, str] = field(default_factory=dict)
    lost: list[RoleRead] = field(default_factory=list)

    def function(
        self, names: Sequence[str], read: Callable[..., Any], moved: Moved | None = None, specs: Sequence[Any] = ()
    ) -> Any:
        """A concrete function of the program's inputs that has the tensors `names`.

        Args:
            read: Gets these tensors, the variables' handles by leaf, what each role reads, and the further arguments;
                gives the result.
            moved: What a role is to read in the place of a table, given the further arguments too.
            specs: Of further arguments.
        """
        program = self.program
        captured = {inner.op.name: outer for outer, inner in program.whole.captures}

        def called(*tensors: Any) -> Any:
            inside = tf.compat.v1.get_default_graph()
            inputs, more = tensors[: len(program.fed)], tensors[len(program.fed) :]
            self._made(inside, inputs, names)
            handles = {leaf: inside.capture(captured[name]) for leaf, name in self.handles.items()}
            tables: dict[Key, Any] = {}
            for key in dict.fromkeys(cut.key for cut in self.cuts):
                dtype = self.placed.variables[key[0]].variable.dtype
                table = tf.raw_ops.ReadVariableOp(resource=handles[key[0]], dtype=dtype)
                tables[key] = table if moved is None else moved(key, table, *more)
            copies: dict[tuple[Key, str], Any] = {}
            for cut in self.cuts:
                _redirect(inside, cut, tables[cut.key], copies)
            found = [inside.get_tensor_by_name(name) for name in names]
            return read(found, handles, tables, *more)

        specs_of_inputs = [tf.TensorSpec(t.shape, t.dtype) for t in program.inputs]
        function = tf.function(called, autograph=False).get_concrete_function(*specs_of_inputs, *specs)
        held = [outer for outer, _ in function.graph.captures if tf.is_symbolic_tensor(outer)]
        if held:  # what was copied has a gradient that reads the graph that it was copied from
            raise InputError(
                "the roles are not told apart: a gradient was written by hand beside a branch or a loop",
                got=f"a backward pass that holds on to {held[0].name!r}",
                expected="on TensorFlow, such a gradient in a program without branches and loops",
                hint="a model that returns logits can be measured, where TiedEmbedding.loss makes a loop",
            )
        return function

    def _made(self, inside: Any, inputs: Sequence[Any], names: Sequence[str]) -> None:
        """Put the program's operations into a graph: by calling the model again, which names them alike; else copied.

        What runs functions is flat in the program alone, so its operations are copied.
        """
        program = self.program
        if program.flat is None and self.again(inputs) == program.returned:
            return
        captured = {inner.op.name: outer for outer, inner in program.whole.captures}
        kept = needed(program.definition, names, {*program.fed, *captured})
        used = {n.lstrip("^").partition(":")[0] for node in kept.node for n in node.input}
        used |= {n.partition(":")[0] for n in names}
        given = dict(zip(program.fed, inputs, strict=True))
        given |= {name: inside.capture(outer) for name, outer in captured.items() if name in used}
        mapped = {f"{name}:0": tensor for name, tensor in given.items() if name in used}
        tf.graph_util.import_graph_def(kept, input_map=mapped, name="")


def split(program: Program, placed: Placed, reads: Sequence[RoleRead], again: Again) -> Split:
    """Find where every read of a role takes in the table."""
    result = Split(program, placed, again)
    inner = {id(outer): tensor.op.name for outer, tensor in program.whole.captures}
    given = {*program.fed, *(t.op.name for _, t in program.whole.captures)}
    live = {node.name for node in needed(program.definition, program.outputs, given).node}
    ways = _Ways(program.definition)
    taken: dict[tuple[str, int], Key] = {}
    for read in reads:
        handle = result.handles[read.leaf] = inner[id(placed.variables[read.leaf].variable.handle)]
        operation = placed.operations[read.node]
        along = {placed.operations[i] for i in read.chain}
        cuts = ways.cuts((read.leaf, read.role), operation, handle, along) if operation in live else []
        if not cuts or any(taken.get((c.node, c.slot), c.key) != c.key for c in cuts):
            result.lost.append(read)
            continue
        result.cuts += [c for c in cuts if (c.node, c.slot) not in taken]
        taken.update(((c.node, c.slot), c.key) for c in cuts)
    return result


class _Ways:
    """The ways from variables to operations, by the names of a `GraphDef`."""

    def __init__(self, definition: Any) -> None:
        self.nodes = {node.name: node for node in definition.node}
        self.by_hand = [node for node in definition.node if BY_HAND in node.attr]

    def cuts(self, key: Key, operation: str, handle: str, along: set[str]) -> list[Cut]:
        """Where an operation takes in a table, and the end of a hand-written gradient around it; none if unclear."""
        node = self.nodes[operation]
        slots = [i for i, name in enumerate(node.input) if self._leads(name, handle, along)]
        if len(slots) != 1:
            return []
        way = frozenset(self._way(node.input[slots[0]], handle, along))
        found = [Cut(key, operation, slots[0], way)]
        for end in self.by_hand:
            shared = [i for i, name in enumerate(end.input) if name.partition(":")[0] in way]
            if shared and self._comes_from(end.name, operation):
                found += [Cut(key, end.name, i, way) for i in shared]
        return found

    def _leads(self, name: str, handle: str, along: set[str]) -> bool:
        """Whether a tensor is the table, by operations on the way alone."""
        base = name.partition(":")[0]
        if base == handle:
            return True
        node = self.nodes.get(base)
        if node is None or name.startswith("^") or not (node.op in ALIASES or base in along):
            return False
        return any(self._leads(n, handle, along) for n in node.input)

    def _way(self, name: str, handle: str, along: set[str]) -> set[str]:
        base = name.partition(":")[0]
        if base == handle:
            return set()
        found = {base}
        for part in self.nodes[base].input:
            if self._leads(part, handle, along):
                found |= self._way(part, handle, along)
        return found

    def _comes_from(self, name: str, operation: str) -> bool:
        waiting, seen = [name], {name}
        while waiting:
            node = self.nodes.get(waiting.pop())
            for part in () if node is None else node.input:
                base = part.lstrip("^").partition(":")[0]
                if base == operation:
                    return True
                if base not in seen:
                    seen.add(base)
                    waiting.append(base)
        return False


def _redirect(graph: Any, cut: Cut, table: Any, copies: dict[tuple[Key, str], Any]) -> None:
    """Let an operation take in what its role's own table becomes."""
    operation = graph.get_operation_by_name(cut.node)
    if operation.type in ("ResourceGather", "ResourceGatherNd"):  # they take a handle
        indices = operation.inputs[1]
        if operation.type == "ResourceGatherNd":
            rows = tf.gather_nd(table, indices)
        else:
            batch = operation.get_attr("batch_dims")
            rows = tf.gather(table, indices, axis=batch, batch_dims=batch)
        rows.set_shape(operation.outputs[0].shape)
        for user in list(operation.outputs[0].consumers()):
            for i, taken in enumerate(user.inputs):
                if taken is operation.outputs[0]:
                    user._update_input(i, rows)
        return
    operation._update_input(cut.slot, _copied(graph, cut, operation.inputs[cut.slot], table, copies))


def _copied(graph: Any, cut: Cut, tensor: Any, table: Any, copies: dict[tuple[Key, str], Any]) -> Any:
    """A tensor on the way, computed from the role's own table."""
    operation = tensor.op
    if operation.name not in cut.way:
        return tensor
    if operation.type == "ReadVariableOp":
        return table
    key = (cut.key, operation.name)
    if key not in copies:
        copies[key] = graph.create_op(
            operation.type,
            [_copied(graph, cut, t, table, copies) for t in operation.inputs],
            [t.dtype for t in operation.outputs],
            attrs={name: value for name, value in operation.node_def.attr.items() if name != "_class"},
            op_def=operation.op_def,
        )
    return copies[key].outputs[tensor.value_index]
