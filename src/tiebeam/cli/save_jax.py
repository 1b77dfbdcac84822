"""A tree of JAX arrays as `model.safetensors`, by the paths of its leaves, and `report.json` beside it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.errors import TargetError

if TYPE_CHECKING:
    from tiebeam.core.report import Report


def write(model: Any, params: Any, report: "Report", folder: Path) -> None:
    """Write every array of the params, or of a module that holds its own.

    An array that has several paths is written under the first; the others stand in the metadata, as for PyTorch.

    Raises:
        TargetError: An array has no values, or two have one name.
    """
    import jax
    import numpy as np
    from safetensors.numpy import save_file

    from tiebeam.backends import resolve
    from tiebeam.backends.jax.kinds.tree import is_abstract, is_key

    arrays, aliases = {}, {}
    seen: Any = resolve(model, params)  # a JaxModel: its slots are the arrays by their paths
    for slot in seen.held.slots:
        if is_abstract(slot.array):
            raise TargetError(f"the array '{slot.name}' has no values", got="a shape alone")
        if slot.name in arrays:
            raise TargetError(
                f"the array '{slot.name}' cannot be written",
                got="another array of that name",
                expected="a name for each",
            )
        held = jax.random.key_data(slot.array) if is_key(slot.array) else slot.array
        arrays[slot.name] = np.ascontiguousarray(held)
        aliases.update(dict.fromkeys(slot.names[1:], slot.name))
    save_file(arrays, folder / "model.safetensors", metadata={"format": "flax", **aliases})
    (folder / "report.json").write_text(report.to_json() + "\n", encoding="utf-8")
