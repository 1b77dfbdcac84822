"""Control flow as an operation: the path that this pass takes is looked into, as that of a Python branch is."""

from collections.abc import Callable, Sequence
from typing import Any


def _cond(predicate: Any, true: Callable[..., Any], false: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    return (true if bool(predicate) else false)(*operands)


#: What a higher-order operator does, by its schema's name, where that is other operations alone. Loops stack what each
#: round gave: no factor would come out of them.
CONTROL: dict[str, Callable[..., Any]] = {"higher_order.cond": _cond}
