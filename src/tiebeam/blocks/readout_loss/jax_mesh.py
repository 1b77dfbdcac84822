"""What a mesh of devices asks of the readout loss in JAX: axes that the caller names, explicitly or in `shard_map`."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

Array = jax.Array
Tree = TypeVar("Tree")


def varying_alike(given: Tree) -> Tree:
    """Within `shard_map`, mark all arrays as differing over the axes that any of them differs over."""
    union = frozenset[str]().union(*map(_axes, jax.tree.leaves(given)))
    if not union:
        return given

    def marked(a: Array) -> Array:
        missing = tuple(sorted(union - _axes(a)))
        return jax.lax.pcast(a, missing, to="varying") if missing else a

    found: Tree = jax.tree.map(marked, given)
    return found


def _axes(a: Array) -> frozenset[str]:
    """Axes of a mesh over which the devices hold different arrays, under the name that JAX's version has for them."""
    kind = jax.typeof(a)
    found = getattr(getattr(kind, "manual_axis_type", None), "varying", None)
    return frozenset(getattr(kind, "vma", ()) if found is None else found)


def automatic(compute: Callable[[Any], Tree], given: Any, like: Array, per_target: Any) -> Tree:
    """Return `compute(given)`, where XLA finds out how to place what is between.

    On a mesh with explicit axes, as `jax.make_mesh` makes them, each operation must say how its result is sharded: a
    block of tokens from every device, and their logits against a table that may be sharded any way, have no place of
    their own. Gradients lie as what they are of.

    Args:
        compute: Of arrays to arrays.
        given: A tree of arrays.
        like: What there is one of for each target lies as this one does.
        per_target: What `compute` returns, with True for what there is one of for each target, False for a scalar.
    """
    mesh = _explicit(given)
    if mesh is None:
        return compute(given)
    names = tuple(n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == _EXPLICIT)
    lies, scalar = jax.typeof(like).sharding, jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    spec = scalar if lies.mesh.empty else lies.spec
    placed = jax.tree.map(lambda each: jax.sharding.NamedSharding(mesh, spec if each else scalar), per_target)
    found: Tree = jax.sharding.auto_axes(compute, axes=names, out_sharding=placed)(given)
    return found


_EXPLICIT = getattr(getattr(jax.sharding, "AxisType", None), "Explicit", None)


def _explicit(given: Any) -> Any:
    """The mesh with explicit axes that an array lies over, or None."""
    if _EXPLICIT is None:  # a JAX that has none
        return None
    meshes = (getattr(getattr(jax.typeof(a), "sharding", None), "mesh", None) for a in jax.tree.leaves(given))
    return next((m for m in meshes if m is not None and _EXPLICIT in (m.axis_types or ())), None)
