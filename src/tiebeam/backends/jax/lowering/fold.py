"""Numbers that a program computes from numbers alone: computed here, by the program's own primitives."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.backends.graphs.building import TINY, known
from tiebeam.backends.graphs.rules import hoisted

if TYPE_CHECKING:
    from tiebeam.backends.jax.lowering.lower import Equation, Lowering

MANY = 1 << 16  # elements of an array that is looked at for whether all of them are equal
#: Cannot be computed outside of the mesh that they are about; `VARIES`: their result is their operand.
COLLECTIVE = frozenset("psum psum2 psum_invariant pmax pmin axis_index all_gather all_to_all ppermute".split())
VARIES = frozenset(("pvary", "pcast"))
#: Work on each element alone, whatever the shape.
ELEMENTWISE = frozenset(
    "add sub mul div neg max min pow integer_pow sqrt rsqrt cbrt square exp exp2 expm1 log log1p tanh logistic abs "
    "sign floor ceil convert_element_type reduce_precision".split()
)


def _broadcast(x: Any, p: Mapping[str, Any]) -> Any:
    shape = [1] * len(p["shape"])
    for size, d in zip(x.shape, p["broadcast_dimensions"], strict=True):
        shape[d] = size
    return np.broadcast_to(x.reshape(shape), p["shape"])


#: What NumPy does to the bit alike, without compiling anything: index arithmetic, and the four operations.
PLAIN: dict[str, Callable[..., Any]] = {
    **{n: lambda a, b, _, f=f: f(a, b) for n, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply),
       ("lt", np.less), ("le", np.less_equal), ("gt", np.greater), ("ge", np.greater_equal), ("eq", np.equal),
       ("ne", np.not_equal))},
    "div": lambda a, b, _: np.divide(a, b),
    "neg": lambda a, _: np.negative(a),
    "sqrt": lambda a, _: np.sqrt(a),
    "convert_element_type": lambda a, p: a.astype(p["new_dtype"]),
    "broadcast_in_dim": _broadcast,
    "reshape": lambda a, p: a.reshape(p["new_sizes"]),
    "select_n": lambda which, a, b, _: np.asarray(np.where(which, b, a)),
    "squeeze": lambda a, p: np.squeeze(a, tuple(p["dimensions"])),
}  # fmt: skip


def bound(eqn: Any, operands: Sequence[Any]) -> Any:
    """Apply the primitive of an equation."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # Older releases hand out the functions of a custom derivative apart from the other parameters.
    functions, params = params if isinstance(params, tuple) else ((), params)
    with eqn.ctx.manager:
        return eqn.primitive.bind(*functions, *operands, **params)


def computed(eqn: Any, operands: Sequence[Any]) -> Any:
    """The result of an equation on known operands."""
    plain = PLAIN.get(eqn.primitive.name)
    name, first = eqn.primitive.name, np.asarray(operands[0] if operands else 0)
    if plain is None or (name == "div" and first.dtype.kind in "iu") or (name == "select_n" and len(operands) != 3):
        return bound(eqn, operands)
    with np.errstate(all="ignore"):
        return np.asarray(plain(*operands, eqn.params))


def equal_or_known(array: Any) -> dict[str, Any]:
    """Facts of a small array, and of a larger one the number that all its elements equal, if so."""
    size = int(np.prod(np.shape(array)))
    if not 1 < size <= MANY or not getattr(array, "is_fully_addressable", True):
        return known(array)
    host = np.asarray(array)
    if host.dtype.kind == "c" or not bool((host == host.flat[0]).all()):
        return known(array)
    return {**known(array), "number": float(host.astype(np.float64).flat[0])}


def fold(low: "Lowering", eqn: Any, at: "Equation") -> None:
    """Settle what is computed from known numbers alone."""
    operands = [low.drafts[v].concrete for v in at.inputs]
    unknown = any(c is None for c in operands) or any(low.drafts[v].varying for v in at.outputs)
    if unknown or eqn.effects or at.name in COLLECTIVE or not (operands or at.name == "iota"):
        return
    if any(np.prod(low.shape(v), initial=1) > TINY for v in at.outputs):
        return
    found = operands if at.name in VARIES else computed(eqn, operands)
    several = found if eqn.primitive.multiple_results or at.name in VARIES else [found]
    for v, concrete in zip(at.outputs, several, strict=True):
        if not jnp.issubdtype(concrete.dtype, jax.dtypes.extended):
            low.settle(v, np.asarray(concrete))


def hoist(low: "Lowering", eqn: Any, at: "Equation") -> bool:
    """Whether an operation was on numbers that were spread out, and is shown as one on the numbers."""
    return at.name in ELEMENTWISE and hoisted(low, at, lambda operands: np.asarray(computed(eqn, operands)))
