"""Numbers that a program computes from numbers alone: computed here, by the program's own primitives."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tiebeam.ir import Op

if TYPE_CHECKING:
    from tiebeam.backends.jax.lower import Equation, Lowering

TINY = 16  # elements of a constant whose value is followed
#: Cannot be computed outside of the mesh that they are about; `VARIES`: their result is their operand.
COLLECTIVE = frozenset("psum psum2 psum_invariant pmax pmin axis_index all_gather all_to_all ppermute".split())
VARIES = frozenset(("pvary", "pcast"))
#: Work on each element alone, whatever the shape.
ELEMENTWISE = frozenset(
    "add sub mul div neg max min pow integer_pow sqrt rsqrt cbrt square exp exp2 expm1 log log1p tanh logistic abs "
    "sign floor ceil convert_element_type reduce_precision".split()
)


def bound(eqn: Any, operands: Sequence[Any]) -> Any:
    """Apply the primitive of an equation."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # Older releases hand out the functions of a custom derivative apart from the other parameters.
    functions, params = params if isinstance(params, tuple) else ((), params)
    with eqn.ctx.manager:
        return eqn.primitive.bind(*functions, *operands, **params)


def known(array: Any) -> dict[str, Any]:
    """Facts of a small array: its elements, and its number where it has one element."""
    size = int(np.prod(np.shape(array)))
    if size > TINY or size == 0:
        return {}
    host = np.asarray(array)
    if size != 1 or host.dtype.kind == "c":
        return {"concrete": host}
    return {"concrete": host, "number": float(host.reshape(()).astype(np.float64))}


def fold(low: "Lowering", eqn: Any, at: "Equation") -> None:
    """Settle what is computed from known numbers alone."""
    operands = [low.drafts[v].concrete for v in at.inputs]
    unknown = any(c is None for c in operands) or any(low.drafts[v].varying for v in at.outputs)
    if unknown or eqn.effects or at.name in COLLECTIVE:
        return
    if any(np.prod(low.shape(v), initial=1) > TINY for v in at.outputs):
        return
    found = operands if at.name in VARIES else bound(eqn, operands)
    several = found if eqn.primitive.multiple_results or at.name in VARIES else [found]
    for v, concrete in zip(at.outputs, several, strict=True):
        if not jnp.issubdtype(concrete.dtype, jax.dtypes.extended):
            low.settle(v, np.asarray(concrete))


def hoist(low: "Lowering", eqn: Any, at: "Equation") -> bool:
    """Do arithmetic on numbers that were spread out before they are: the result is a number, spread out."""
    out = at.outputs[0]
    if at.name not in ELEMENTWISE or np.prod(low.shape(out), initial=1) == 1:
        return False
    sources = [low.scalar_behind(v) for v in at.inputs]
    scalars = [s for s in sources if s is not None]
    operands: list[Any] = [low.drafts[s].concrete for s in scalars]
    if len(scalars) < len(sources) or any(c is None for c in operands):
        return False
    result = low.add((), low.drafts[out].dtype, low.drafts[out].origin, leafy=low.drafts[out].leafy)
    low.settle(result, np.asarray(bound(eqn, [np.reshape(c, ()) for c in operands])))
    low.emit(at, Op.POINTWISE, scalars, [None] * len(scalars), [result])
    low.emit(at, Op.LAYOUT, [result], [(-1,) * len(low.shape(out))])
    return True
