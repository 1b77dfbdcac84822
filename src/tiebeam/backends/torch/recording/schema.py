"""What an ATen overload's schema says: which arguments it writes, and whether it is elementwise."""

from dataclasses import dataclass
from typing import Any

import torch

#: Arguments that an operation writes though its schema does not say so: running statistics.
WRITES_UNSAID = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}

PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "linear", "matmul", "addbmm"))
GATHERS = frozenset(("embedding", "index", "index_select", "_embedding_bag", "gather"))
TELLING = PRODUCTS | GATHERS | {"scatter"}

#: Operations that answer with a number of Python's.
READS_OUT = frozenset(("_local_scalar_dense", "is_nonzero", "equal"))


@dataclass(frozen=True, slots=True)
class Schema:
    """Facts of one overload.

    Attributes:
        name: Its packet without the in-place underscore: "mul" for `aten.mul_.Tensor`.
        writes: Positions of arguments that it writes; `writes_names`: keyword arguments likewise.
        composite: It is written in terms of others.
        telling: It may be a role of a table.
        reads_alone: It reads its arguments and returns: what it does to the ledger can wait.
    """

    name: str
    writes: tuple[int, ...]
    writes_names: tuple[str, ...]
    pointwise: bool
    random: bool
    writes_any: bool = False
    composite: bool = False
    reads_alone: bool = False
    telling: bool = False


_KNOWN: dict[int, tuple[Any, Schema]] = {}  # by id: an overload's own hash is a function of Python's, called each time


def schema_of(func: Any) -> Schema:
    """Schema facts of an `OpOverload`; a higher-order operator is an opaque name, of a namespace of its own."""
    known = _KNOWN.get(id(func))
    if known is None:
        known = _KNOWN[id(func)] = func, _read(func)  # held: its id stays its own
    return known[1]


def _read(func: Any) -> Schema:
    if not isinstance(func, torch._ops.OpOverload):
        return Schema(f"higher_order.{func}", (), (), False, False)
    namespace, _, rest = func._schema.name.partition("::")
    name = rest[:-1] if rest.endswith("_") and not rest.endswith("__") else rest
    written = [
        (i, a) for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    ]
    composite = namespace == "aten" and _composite(func.name())
    writes_any = bool(written) or rest in WRITES_UNSAID
    return Schema(
        name=name if namespace == "aten" else f"{namespace}.{name}",
        writes=tuple(i for i, a in written if not a.kwarg_only),
        writes_names=tuple(a.name for _, a in written),
        pointwise=torch.Tag.pointwise in func.tags,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        composite=composite,
        writes_any=writes_any,
        telling=name in TELLING,
        reads_alone=namespace == "aten" and not writes_any and not composite and rest not in READS_OUT,
    )


def _composite(name: str) -> bool:
    """Whether an operation is written in terms of others."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    except RuntimeError:  # one that the dispatcher does not have: nested tensors answer such (sizes) themselves
        return False
