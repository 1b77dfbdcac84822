"""The function graph of a model's call, flat and as it was written: nothing has optimised it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.tensorflow.flatten import Flat, flattened, runs_functions
from tiebeam.backends.keras.untouched import untouched
from tiebeam.backends.protocol import RefusedError
from tiebeam.errors import TiebeamError, TraceError


@dataclass
class Program:
    """What a model's call computes from inputs of one kind; it outlives the weights, so another pass traces nothing.

    Attributes:
        graph: The flat graph.
        inputs: The tensors among the inputs; `fed`: the names of the nodes that stand for them.
        outputs: Names of the tensors that the model returned.
        captured: By name of the node that stands for it: a variable's handle, or a tensor that the program holds.
        variables: The variables behind handles, by the id of the handle.
        flat: How functions were opened, if there were any.
        scopes: Path of the layer that opened a name scope.
        compiled: Evaluators by what they measure.
    """

    graph: Any
    inputs: list[Any]
    fed: list[str]
    outputs: list[str]
    captured: dict[str, Any]
    variables: dict[int, Any]
    flat: Flat | None
    scopes: Mapping[str, str]
    compiled: dict[Any, Any] = field(default_factory=dict)

    def where(self, node: str) -> str:
        """Path of the layer whose call made a node."""
        while True:
            scope, _, _ = node.rpartition("/")
            while scope:
                if f"{scope}/" in self.scopes:
                    return self.scopes[f"{scope}/"]
                caller = self.flat.callers.get(f"{scope}/") if self.flat else None
                if caller is not None:
                    break
                scope, _, _ = scope.rpartition("/")
            else:
                return ""
            node = f"{caller}/"


def program_of(view: KerasModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
    """Trace the model's call.

    Raises:
        RefusedError: The model raised; the cause is chained.
        TraceError: It asks for the value of a tensor.
    """
    leaves = keras.tree.flatten((args, dict(kwargs)))
    places = [i for i, v in enumerate(leaves) if tf.is_tensor(v)]
    inputs = [leaves[i] for i in places]
    scopes: dict[str, str] = {}

    def call(*tensors: Any) -> list[Any]:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        own_args, own_kwargs = keras.tree.pack_sequence_as((args, dict(kwargs)), given)
        with untouched(view.model), _watched(view.layers.paths, scopes):
            out = view.model(*own_args, **own_kwargs)
        return [tf.identity(t) for v in keras.tree.flatten(out) for t in _dense(v)]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in inputs]
    try:
        traced = tf.function(call, autograph=False).get_concrete_function(*specs)
    except TiebeamError:
        raise
    except _VALUE_ASKED as error:
        raise TraceError(
            f"{view.name} cannot be traced: it asks for the value of a tensor",
            got=str(error).splitlines()[0],
            expected="a call that tf.function accepts without converting it",
            hint="branch with keras.ops.cond, compute with keras.ops, or put the branch into a tf.function of its own",
        ) from error
    except Exception as error:
        raise RefusedError from error
    return _flat_program(traced, inputs, scopes)


_VALUE_ASKED = (
    tf.errors.OperatorNotAllowedInGraphError,
    NotImplementedError,  # numpy() of a symbolic tensor
    AttributeError,
)


def _dense(value: Any) -> list[Any]:
    """The tensors of an output."""
    if isinstance(value, tf.SparseTensor | tf.RaggedTensor):
        return [value.values]
    return [value] if tf.is_tensor(value) else []


@contextmanager
def _watched(paths: Mapping[int, str], scopes: dict[str, str]) -> Iterator[None]:
    """Note which layer opened each name scope of the graph that is being made."""
    graph = tf.compat.v1.get_default_graph()
    opened = graph.name_scope

    @contextmanager
    def name_scope(name: Any) -> Iterator[str]:
        with opened(name) as scope:
            stack = global_state.get_global_attribute("name_scope_stack") or ()
            caller = getattr(stack[-1], "caller", None) if stack else None
            if scope and scope not in scopes and id(caller) in paths:
                scopes[scope] = paths[id(caller)]
            yield scope

    graph.name_scope = name_scope
    try:
        yield
    finally:
        del graph.name_scope


def _flat_program(traced: Any, inputs: list[Any], scopes: Mapping[str, str]) -> Program:
    graph = traced.graph
    variables = {id(v.handle): v for v in graph.variables if hasattr(v, "handle")}
    captured = {inner.op.name: outer for outer, inner in graph.captures}
    fed = [t.op.name for t in graph.inputs[: len(inputs)]]
    outputs = [t.name for t in graph.outputs]
    program = Program(graph, inputs, fed, outputs, captured, variables, None, scopes)
    if runs_functions(graph):
        flat = flattened(graph.as_graph_def())
        program.flat, program.outputs = flat, [flat.tensor(n) for n in outputs]
        program.graph = function_of(program, flat.definition, lambda _: [], program.outputs).graph
    return program


def function_of(program: Program, definition: Any, read: Any, names: Sequence[str]) -> Any:
    """A concrete function of the program's inputs that places a graph and reads tensors of it.

    Args:
        definition: A `GraphDef`, whose nodes keep their names.
        read: What makes results of the tensors called `names`.
    """
    present = {n.name for n in definition.node}

    def placed(*tensors: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        fed = dict(zip(program.fed, tensors, strict=True))
        fed |= {name: graph.capture(outer) for name, outer in program.captured.items() if name in present}
        given = {f"{name}:0": tensor for name, tensor in fed.items() if name in present}
        found = tf.graph_util.import_graph_def(definition, input_map=given, return_elements=list(names), name="")
        return read(found)

    return tf.function(placed, autograph=False).get_concrete_function(*[tf.TensorSpec(t.shape, t.dtype) for t in program.inputs])
