"""One call of the model as it is, operation by operation: a quarter of what it costs to make its graph.

Only the arithmetic with single numbers is looked at, and only until it has shown the ones that are in doubt. It may
say that they come out the same over other inputs; whatever else it meets leaves the question to a whole pass.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from tensorflow.python.framework import op_callbacks, op_def_registry

from tiebeam.backends.keras.common import KerasModel
from tiebeam.backends.keras.tensorflow.graph.program import Program, parts_of
from tiebeam.backends.keras.tensorflow.measure import READS
from tiebeam.backends.keras.untouched import untouched
from tiebeam.core.reading.arithmetic import Arithmetic

ARITHMETIC = frozenset(("Add", "AddV2", "Sub", "Mul", "MulNoNan", "Div", "RealDiv", "DivNoNan", "Neg"))
PRODUCTS = frozenset(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"))
WORK = 10**10  # multiplications, about a second's: where a model needs more, its graph is made sooner than it is run


class _StoppedError(BaseException):
    """No more is to be seen; the cause is what the model raised, if it did. No model may catch it."""


def glance(
    program: Program, view: KerasModel, expected: Arithmetic, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether the model does the same arithmetic over inputs of another length; False also where it cannot be told.

    It has gone far enough where the signal, behind the last number in doubt, meets a matrix.

    Args:
        program: Of the inputs that `expected` was seen with.
    """
    # What a function does, a call does not show: what is seen beside it could be taken for it.
    if program.flat is not None or not _longer_or_shorter(program, args, kwargs) or _acts(program):
        return False
    seen: list[tuple[str, float]] = []
    work = 0

    def look(op_type: str, inputs: Sequence[Any], attrs: Any, outputs: Sequence[Any], *_: Any, **__: Any) -> None:
        nonlocal work
        del attrs
        number = _number(op_type, inputs, outputs[0]) if op_type in ARITHMETIC else None
        if number is not None:
            seen.append((op_type, number))
            if not expected.continues(seen):
                raise _StoppedError
        elif op_type in PRODUCTS:
            work += outputs[0].shape.num_elements() * (inputs[0].shape[-1:].num_elements() or 1)
            if work > WORK or len(seen) >= expected.needed:
                raise _StoppedError

    try:
        _call(view, args, kwargs, look)
    except _StoppedError as stopped:
        if stopped.__cause__ is not None:  # these inputs are refused: a whole pass says why
            return False
    return len(seen) >= expected.needed and expected.continues(seen)


def _call(view: KerasModel, args: tuple[Any, ...], kwargs: Mapping[str, Any], look: Callable[..., None]) -> None:
    """Call the model, and show every operation that this thread executes."""
    op_callbacks.add_op_callback(look)
    try:
        with untouched(view.model):
            view.model(*args, **kwargs)
    except Exception as error:
        raise _StoppedError from error
    finally:
        op_callbacks.remove_op_callback(look)


def _number(op_type: str, inputs: Sequence[Any], output: Any) -> float | None:
    """The operand of one element beside an array, where they are floats."""
    if not output.dtype.is_floating:
        return None
    if op_type == "Neg":
        return None if output.shape.num_elements() == 1 else -1.0  # as in `lowering.ops`: multiplied by it
    single = [t.shape.num_elements() == 1 for t in inputs]
    if single.count(True) != 1:
        return None
    number = float(inputs[single.index(True)].numpy().reshape(()))
    return None if op_type == "Sub" and number == 0.0 and single[1] else number  # and here nothing is done


def _longer_or_shorter(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the tensors of the arguments have other sizes behind their first axes."""
    tensors = [t for v in keras.tree.flatten((args, dict(kwargs))) for t in parts_of(v)]
    return [t.shape.as_list()[1:] for t in tensors] != [t.shape.as_list()[1:] for t in program.inputs]


def _acts(program: Program) -> bool:
    """Whether the program does more than to compute: it writes a variable, draws from a generator, prints."""
    types = {operation.type for operation in program.graph.get_operations()} - READS
    definitions = [op_def_registry.get(name) for name in types]
    return any(d is None or d.is_stateful for d in definitions)
