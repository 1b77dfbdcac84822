"""One flat graph of a function and of every function that it runs: by the names of its nodes alone.

A call is opened in its place. A branch or a loop stays, for its value; beside it stand a copy of each branch and of
one round of the loop, so that what they read can be followed and measured.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
#: Nodes that run functions, and the attributes that name these.
BODIES: dict[str, tuple[str, ...]] = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("body",),
    "StatelessWhile": ("body",),
}
LOOPS = frozenset(("While", "StatelessWhile"))


@dataclass
class Flat:
    """A flat graph.

    Attributes:
        definition: Its `GraphDef`.
        results: By node that runs functions: for each of these the names of the tensors that it returns.
        callers: By prefix of the nodes of an opened function: the node that runs it.
    """

    definition: Any
    results: dict[str, list[list[str]]] = field(default_factory=dict)
    callers: dict[str, str] = field(default_factory=dict)
    _alias: dict[str, str] = field(default_factory=dict)

    def tensor(self, name: str) -> str:
        """The tensor that a name stands for once calls are opened."""
        while name in self._alias:
            name = self._alias[name]
        return name


def runs_functions(graph: Any) -> bool:
    """Whether any node of a graph does."""
    return any(op.type in CALLS or op.type in BODIES for op in graph.get_operations())


def flattened(definition: Any) -> Flat:
    """Open every function.

    Args:
        definition: The `GraphDef` of a function's graph, with its library.
    """
    made = type(definition)()
    made.versions.CopyFrom(definition.versions)
    made.library.CopyFrom(definition.library)
    flat = Flat(made)
    _Opening(flat, {f.signature.name: f for f in definition.library.function}).add(definition.node, "", {}, ())
    for node in made.node:
        inputs = [name if name.startswith("^") else flat.tensor(name) for name in node.input]
        # Control inputs come last.
        node.input[:] = sorted(dict.fromkeys(inputs) if node.op == "NoOp" else inputs, key=lambda n: n[0] == "^")
    for several in flat.results.values():
        several[:] = [[flat.tensor(name) for name in names] for names in several]
    return flat


class _Opening:
    def __init__(self, flat: Flat, library: dict[str, Any]) -> None:
        self.flat, self.library = flat, library

    def add(self, nodes: Iterable[Any], prefix: str, given: dict[str, str], before: Sequence[str]) -> None:
        """Copy nodes under a prefix.

        Args:
            given: Tensors that stand for the placeholders of a function.
            before: Control inputs of the call, which each of its nodes waits for.
        """
        rename = _renaming(prefix, given)
        for node in nodes:
            if node.name in given:
                continue
            inputs = [r for name in node.input if (r := rename(name))]
            self._copy(node, prefix + node.name, [*inputs, *(before if node.op != "Const" else ())])

    def _copy(self, node: Any, name: str, inputs: list[str]) -> None:
        args = [n for n in inputs if n[0] != "^"]
        waits = [n for n in inputs if n[0] == "^"]
        made = self.flat.definition.node.add()
        if node.op in CALLS or node.op in self.library:
            function = node.attr["f"].func.name if node.op in CALLS else node.op
            results, ends = self._open(function, name, args, waits)
            self.flat._alias.update((f"{name}:{i}", r) for i, r in enumerate(results))
            made.name, made.op = name, "NoOp"  # what waits for the call waits for its nodes
            made.input[:] = ends
            return
        made.CopyFrom(node)
        made.name = name
        made.input[:] = inputs
        if "_class" in made.attr:  # where to place it: beside a node of its own function
            del made.attr["_class"]
        if node.op in BODIES:
            bodies = [f for a in BODIES[node.op] for f in (node.attr[a].list.func or [node.attr[a].func])]
            given = args if node.op in LOOPS else args[1:]
            opened = [self._open(f.name, f"{name}.{i}", given, ())[0] for i, f in enumerate(bodies)]
            self.flat.results[name] = opened

    def _open(
        self, function: str, caller: str, args: Sequence[str], waits: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Add the nodes of a function: the names of its results, and of the nodes that it ends with."""
        body = self.library[function]
        graph, flat_names = function_def_to_graph_def(body)
        given = dict(zip((a.name for a in body.signature.input_arg), args, strict=True))
        prefix = f"{caller}/"
        self.flat.callers[prefix] = caller
        self.add(graph.node, prefix, given, waits)
        rename = _renaming(prefix, given)
        returned = [body.ret[a.name] for a in body.signature.output_arg]
        results = [rename(flat_names.get(name, name)) for name in returned]
        ends = [f"^{prefix}{name}" for name in body.control_ret.values()]
        return results, ends or list(waits)


def _renaming(prefix: str, given: dict[str, str]) -> Callable[[str], str]:
    def rename(name: str) -> str:
        """The input as it is called outside; "" for the control input of an argument."""
        if name.startswith("^"):
            return "" if name[1:] in given else f"^{prefix}{name[1:]}"
        base, _, index = name.partition(":")
        return given.get(base, f"{prefix}{base}:{index or 0}")

    return rename
