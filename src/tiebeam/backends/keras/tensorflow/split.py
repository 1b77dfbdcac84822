"""A model's graph split by hand: each role reads a tensor of its own in the place of the table's variable.

What happens to a table stands in the graph: a read of the variable, casts and transposes, then a lookup or a product.
That way is copied for each role, and the copy starts at a placeholder. Gradients with respect to these tensors are the
roles' own; what moves in one of them moves in that role alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tiebeam.backends.keras.tensorflow.program import Program, needed
from tiebeam.backends.keras.tensorflow.trace import Placed
from tiebeam.core.passes import Role, RoleRead

GATHERS = {"ResourceGather": "GatherV2", "ResourceGatherNd": "GatherNd"}
"""Lookups that take a variable's handle, and what they are on a tensor."""

ALIASES = frozenset(("ReadVariableOp", "Identity", "StopGradient", "PreventGradient"))
"""What stands between a variable and its use without making another value."""

Key = tuple[int, Role]
"""A leaf, in one role."""
Moved = Callable[..., Any]


@dataclass
class Split:
    """The graph of a program, rewritten.

    Attributes:
        definition: As a `GraphDef`.
        places: The placeholder that each leaf and role reads.
        handles: Of each leaf, the node that its variable's handle is.
        lost: Reads that could not be given a tensor of their own: those inside of a branch or a loop, and operations
            that read a table twice.
    """

    program: Program
    placed: Placed
    definition: Any
    places: dict[Key, str] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)
    lost: list[RoleRead] = field(default_factory=list)

    def function(
        self, names: Sequence[str], read: Callable[..., Any], moved: Moved | None = None, specs: Sequence[Any] = ()
    ) -> Any:
        """A concrete function of the program's inputs that runs what the tensors `names` need.

        Args:
            read: Gets these tensors, the variables' handles by leaf, what each role reads, and the further arguments;
                gives the result.
            moved: What a role is to read in the place of a table, given the further arguments too.
            specs: Of further arguments.
        """
        program = self.program
        captured = {inner.op.name: outer for outer, inner in program.whole.captures}
        kept = needed(self.definition, names, {*program.fed, *captured, *self.places.values()})
        used = {n.lstrip("^").partition(":")[0] for node in kept.node for n in node.input}
        used |= {n.partition(":")[0] for n in names}

        def called(*tensors: Any) -> Any:
            inside = tf.compat.v1.get_default_graph()
            inputs, more = tensors[: len(program.fed)], tensors[len(program.fed) :]
            given = dict(zip(program.fed, inputs, strict=True))
            given |= {name: inside.capture(outer) for name, outer in captured.items() if name in used}
            handles = {leaf: inside.capture(captured[name]) for leaf, name in self.handles.items()}
            tables: dict[Key, Any] = {}
            for (leaf, role), place in self.places.items():
                if place in used:
                    dtype = self.placed.variables[leaf].variable.dtype
                    table = tf.raw_ops.ReadVariableOp(resource=handles[leaf], dtype=dtype)
                    tables[leaf, role] = table if moved is None else moved((leaf, role), table, *more)
            given |= {self.places[key]: tensor for key, tensor in tables.items()}
            mapped = {f"{name}:0": tensor for name, tensor in given.items() if name in used}
            found = tf.graph_util.import_graph_def(kept, input_map=mapped, return_elements=list(names), name="")
            return read(found, handles, tables, *more)

        inputs = [tf.TensorSpec(t.shape, t.dtype) for t in program.inputs]
        return tf.function(called, autograph=False).get_concrete_function(*inputs, *specs)


def split(program: Program, placed: Placed, reads: Sequence[RoleRead]) -> Split:
    """Give every read of a role a tensor of its own."""
    made = type(program.definition)()
    made.CopyFrom(program.definition)
    result = Split(program, placed, made)
    inner = {id(outer): tensor.op.name for outer, tensor in program.whole.captures}
    given = {*program.fed, *(t.op.name for _, t in program.whole.captures)}
    live = {node.name for node in needed(made, program.outputs, given).node}
    writing = _Writing(result, placed)
    for read in reads:
        variable = placed.variables[read.leaf].variable
        result.handles[read.leaf] = inner[id(variable.handle)]
        if placed.operations[read.node] not in live or not writing.part(read):
            result.lost.append(read)
    return result


class _Writing:
    """Copies of the ways from tables to their reads.

    Args:
        result: Whose definition is rewritten.
    """

    def __init__(self, result: Split, placed: Placed) -> None:
        self.result, self.operations = result, placed.operations
        self.nodes = {node.name: node for node in result.definition.node}
        self.parted: set[tuple[str, int]] = set()

    def part(self, read: RoleRead) -> bool:
        """Let a read start at its role's own tensor; False where it could not be told which operand is the table."""
        node = self.nodes[self.operations[read.node]]
        handle = self.result.handles[read.leaf]
        along = {self.operations[i] for i in read.chain}
        slots = [i for i, name in enumerate(node.input) if self._leads(name, handle, along)]
        if len(slots) != 1 or (node.name, slots[0]) in self.parted:
            return False
        [slot] = slots
        self.parted.add((node.name, slot))
        place = self._place(read)
        if node.op in GATHERS:
            self._on_a_tensor(node, place)
        else:
            node.input[slot] = self._copied(node.input[slot], handle, along, read.role, place)
        return True

    def _leads(self, name: str, handle: str, along: set[str]) -> bool:
        """Whether a tensor is the table, by operations on the way alone."""
        base = name.partition(":")[0]
        if name.startswith("^") or base not in self.nodes:
            return base == handle
        node = self.nodes[base]
        if base == handle:
            return True
        on_the_way = node.op in ALIASES or base in along
        return on_the_way and any(self._leads(n, handle, along) for n in node.input)

    def _place(self, read: RoleRead) -> str:
        """The placeholder that stands for a table in one role."""
        key = (read.leaf, read.role)
        if key not in self.result.places:
            variable = self.result.placed.variables[read.leaf].variable
            node = self.result.definition.node.add()
            node.name, node.op = f"tiebeam_{read.leaf}_{read.role}", "Placeholder"
            node.attr["dtype"].type = variable.dtype.as_datatype_enum
            node.attr["shape"].shape.CopyFrom(variable.shape.as_proto())
            self.nodes[node.name] = node
            self.result.places[key] = node.name
        return self.result.places[key]

    def _copied(self, name: str, handle: str, along: set[str], role: Role, place: str) -> str:
        """A tensor on the way, computed from the role's own table."""
        base, _, index = name.partition(":")
        node = self.nodes[base]
        if node.op == "ReadVariableOp":
            return f"{place}:0"
        if base == handle:
            return name
        twin = f"{base}/tiebeam_{place}"
        if twin not in self.nodes:
            made = self.result.definition.node.add()
            made.CopyFrom(node)
            made.name = twin
            made.attr.pop("_class", None)
            self.nodes[twin] = made
            for i, part in enumerate(node.input):
                if self._leads(part, handle, along):
                    made.input[i] = self._copied(part, handle, along, role, place)
        return f"{twin}:{index or 0}"

    def _on_a_tensor(self, node: Any, place: str) -> None:
        """Turn a lookup through a handle into one on a tensor."""
        axis = self.result.definition.node.add()
        axis.name, axis.op = f"{node.name}/tiebeam_axis", "Const"
        batch = node.attr["batch_dims"].i if node.op == "ResourceGather" else 0
        axis.attr["dtype"].type = tf.int32.as_datatype_enum
        axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(batch, tf.int32))
        kept: Mapping[str, Any] = {"Tparams": node.attr["dtype"].type, "Tindices": node.attr["Tindices"].type}
        data = [f"{place}:0", node.input[1]]
        waits = [n for n in node.input if n.startswith("^")]
        made = GATHERS[node.op]
        node.op = made
        for key in list(node.attr):
            if not key.startswith("_output") and key not in ("Tindices",):
                del node.attr[key]
        node.attr["Tparams"].type, node.attr["Tindices"].type = kept["Tparams"], kept["Tindices"]
        if made == "GatherV2":
            data.append(f"{axis.name}:0")
            node.attr["Taxis"].type = tf.int32.as_datatype_enum
            node.attr["batch_dims"].i = batch
        node.input[:] = [*data, *waits]
