"""Models without memory for their weights: what a config asks for, counted and traced at no cost."""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tiebeam.errors import TargetError


@contextmanager
def on_meta() -> Iterator[None]:
    """New tensors without memory, except those made from one number, which keep it.

    A factor that a model puts into a buffer, as `torch.tensor(22.6)`, would be lost on meta; as a
    zero-dimensional tensor on the CPU it takes part in meta arithmetic.
    """
    import torch

    with torch.device("meta"), _keeping_numbers():
        yield


MOST_MODULES = 50_000
"""In one model: thirty times one of 126 layers, and enough for 60 layers of 160 experts with a module each."""


@contextmanager
def bounded(what: str, *, seconds: float = math.inf) -> Iterator[None]:
    """Stop a config that asks for more modules than any model has, after seconds rather than hours.

    Args:
        seconds: After which to stop at the next module, whatever their number.

    Raises:
        TargetError: There are more than `MOST_MODULES`, or they take longer.
    """
    from torch.nn.modules.module import register_module_module_registration_hook

    count, end = 0, time.monotonic() + seconds

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1
        late = time.monotonic() > end
        if count > MOST_MODULES or late:
            raise TargetError(
                f"{what} asks for more modules than tiebeam builds",
                got=f"{count:,} after {seconds:g} seconds, and more to come" if late else f"more than {MOST_MODULES:,}",
                expected="a model that fits a machine, with --meta too: modules take memory where weights do not",
                hint="look at the number of layers in the config",
            )

    handle = register_module_module_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()


def _keeping_numbers() -> AbstractContextManager[object]:
    import torch
    from torch.overrides import TorchFunctionMode

    class KeepNumbers(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            made = func in (torch.tensor, torch.scalar_tensor)
            if made and args and isinstance(args[0], int | float) and kwargs.get("device") is None:
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    return KeepNumbers()
