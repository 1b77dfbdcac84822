"""The function graph of a model's call, flat and as it was written: nothing has optimised it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.layers import Layers
from tiebeam.backends.keras.tensorflow.graph.flatten import Flat, flattened, runs_functions
from tiebeam.backends.keras.untouched import untouched
from tiebeam.backends.protocol import RefusedError
from tiebeam.blocks.readout_loss.sight import logits_in_sight
from tiebeam.errors import TiebeamError, TraceError


@dataclass
class Program:
    """What a model's call computes from inputs of one kind; it outlives the weights, so another pass traces nothing.

    Attributes:
        whole: The graph of the call as the model made it.
        inputs: The tensors among the arguments; `fed`: names of the nodes that stand for them.
        returned: Names of the tensors that the model returned.
        scopes: Path of the layer that a name scope belongs to.
        traced: The function of the graph; it keeps it alive.
        flat: The graph without calls, where there were any; `opened`: the function that holds it.
        compiled: Evaluators by what they measure.
        first: What was found while the graph was made; see `trace`.
        output: What the model returned, of the tensors of `whole`.
    """

    whole: Any
    inputs: list[Any]
    fed: list[str]
    returned: list[str]
    scopes: Mapping[str, str]
    traced: Any = None
    flat: Flat | None = None
    opened: Any = None
    compiled: dict[Any, Any] = field(default_factory=dict)
    first: Any = None
    output: Any = None

    @property
    def graph(self) -> Any:
        """The flat graph."""
        return self.opened.graph if self.opened else self.whole

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the tensors of the flat graph that the model returned."""
        return [self.flat.tensor(n) for n in self.returned] if self.flat else self.returned

    @cached_property
    def definition(self) -> Any:
        """The flat graph as a `GraphDef`."""
        return self.flat.definition if self.flat else self.whole.as_graph_def()

    @property
    def variables(self) -> dict[int, Any]:
        """The variables that the program reads, by the id of their handle; none while it is being made."""
        return {id(v.handle): v for v in self.whole.variables if isinstance(v, tf.Variable)}

    def where(self, node: str) -> str:
        """Path of the layer whose call made a node; a node of a function belongs where that was called."""
        callers = self.flat.callers if self.flat else {}
        scope = node.rpartition("/")[0]
        while scope:
            if f"{scope}/" in self.scopes:
                return self.scopes[f"{scope}/"]
            scope = callers.get(f"{scope}/", scope).rpartition("/")[0]
        return self.scopes.get("", "")

    def function(self, names: Sequence[str], read: Callable[[list[Any]], Any]) -> Any:
        """A concrete function of the inputs that runs what the tensors `names` need, and hands them to `read`."""
        placeholders = self.fed
        captured = {inner.op.name: outer for outer, inner in self.whole.captures}
        kept = needed(self.definition, names, {*placeholders, *captured})
        used = {n.partition(":")[0] for node in kept.node for n in node.input}

        def placed(*tensors: Any) -> Any:
            inside = tf.compat.v1.get_default_graph()
            given = dict(zip(placeholders, tensors, strict=True))
            given |= {name: inside.capture(outer) for name, outer in captured.items() if name in used}
            mapped = {f"{name}:0": tensor for name, tensor in given.items() if name in used}
            return read(tf.graph_util.import_graph_def(kept, input_map=mapped, return_elements=list(names), name=""))

        specs = [tf.TensorSpec(t.shape, t.dtype) for t in self.inputs]
        return tf.function(placed, autograph=False).get_concrete_function(*specs)


def needed(definition: Any, names: Sequence[str], given: Collection[str]) -> Any:
    """The part of a `GraphDef` that computes the tensors `names` from the nodes `given`, which it leaves out."""
    nodes = {node.name: node for node in definition.node}
    waiting, reached = [n.partition(":")[0] for n in names], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in reached and name not in given:
            reached.add(name)
            waiting += [n.lstrip("^").partition(":")[0] for n in nodes[name].input]
    part = type(definition)()
    part.versions.CopyFrom(definition.versions)
    part.library.CopyFrom(definition.library)
    part.node.extend(node for name, node in nodes.items() if name in reached)
    for node in part.node:
        node.attr.pop("_class", None)  # where to place it: beside a node that may not be there
    return part


class _RaisedError(Exception):
    """The model's own call raised; the cause is chained."""


def program_of(
    view: KerasModel, args: tuple[Any, ...], kwargs: Mapping[str, Any], extend: Callable[[Program], list[Any]]
) -> Program:
    """Trace the model's call.

    Args:
        extend: Looks at the graph as soon as the model has made it, where it is flat, and adds what its function
            returns.

    Raises:
        RefusedError: The model raised; the cause is chained.
        TraceError: It asks for the value of a tensor.
    """
    arguments = (args, dict(kwargs))
    leaves = keras.tree.flatten(arguments)
    inputs = [t for v in leaves for t in parts_of(v)]
    made: list[Program] = []

    def call(*tensors: Any) -> list[Any]:
        left, scopes = list(tensors), dict[str, str]()
        given = [_joined(v, [left.pop(0) for _ in parts_of(v)]) for v in leaves]
        own_args, own_kwargs = keras.tree.pack_sequence_as(arguments, given)
        try:
            with untouched(view.model), logits_in_sight(), _watched(view.layers, scopes):
                out = view.model(*own_args, **own_kwargs)
        except TiebeamError:
            raise
        except Exception as error:
            raise _RaisedError from error
        graph = tf.compat.v1.get_default_graph()
        returned = [tf.identity(t).name for v in keras.tree.flatten(out) for t in parts_of(v)]
        made.append(Program(graph, inputs, [t.op.name for t in tensors], returned, scopes))
        made[-1].output = out
        return [] if runs_functions(graph) else extend(made[-1])

    try:
        traced = tf.function(call, autograph=False).get_concrete_function(
            *[tf.TensorSpec(t.shape, t.dtype) for t in inputs]
        )
    except _RaisedError as raised:
        error = raised.__cause__
        try:
            missing = _missing_values(view, args, kwargs, error)
        except Exception as own:
            raise RefusedError from own
        raise missing from error
    program = made[-1]
    program.traced = traced
    if runs_functions(program.whole):
        program.flat = flattened(program.whole.as_graph_def())
        program.opened = program.function(_ends(program), lambda found: found)
    return program


def _ends(program: Program) -> list[str]:
    """What the flat graph computes: its outputs, and those of the bodies that stand beside branches and loops."""
    assert program.flat is not None
    beside = [n for several in program.flat.results.values() for names in several for n in names]
    return list(dict.fromkeys([*program.outputs, *beside]))


def _missing_values(
    view: KerasModel, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: BaseException | None
) -> TraceError:
    """The error of a model that was refused as a graph, if it runs by itself; else the model's own is raised."""
    with untouched(view.model):
        view.model(*args, **kwargs)
    return TraceError(
        f"{view.name} runs, but not as a tf.function",
        got=f"{type(error).__name__}: {error}".splitlines()[0],
        expected="a call that needs no value of a tensor before the graph runs",
        hint="branch with keras.ops.cond, compute with keras.ops, or put the branch into a tf.function of its own",
    )


def parts_of(value: Any) -> list[Any]:
    """The tensors that a leaf of the arguments is: of a ragged or sparse one, several."""
    parts = tf.nest.flatten(value, expand_composites=True) if tf.is_tensor(value) else []
    return [tf.convert_to_tensor(t) for t in parts]


def _joined(value: Any, parts: list[Any]) -> Any:
    return tf.nest.pack_sequence_as(value, parts, expand_composites=True) if parts else value


@contextmanager
def _watched(layers: Layers, scopes: dict[str, str]) -> Iterator[None]:
    """Note whose each name scope is while the graph is made: TensorFlow numbers scopes of one name, Keras does not."""
    graph = tf.compat.v1.get_default_graph()
    opened, stack = graph.name_scope, list[str]()

    @contextmanager
    def name_scope(name: Any) -> Iterator[str]:
        with opened(name) as scope:
            new = bool(name) and not str(name).endswith("/")
            stack.extend([name] if new else [])
            if new and scope not in scopes:
                scopes[scope] = layers.where(stack)
            yield scope
            del stack[len(stack) - new :]

    graph.name_scope = name_scope
    try:
        yield
    finally:
        del graph.name_scope
