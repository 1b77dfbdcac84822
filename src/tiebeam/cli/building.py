"""The circumstances under which PyTorch models are built: a seed, and no memory where none is wanted."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's CPU generator at a seed; as before afterwards."""
    import torch

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def on_meta() -> Iterator[None]:
    """New tensors without memory, except those made from one number, which keep it.

    A factor that a model puts into a buffer, as `torch.tensor(22.6)`, would be lost on meta; as a
    zero-dimensional tensor on the CPU it takes part in meta arithmetic.
    """
    import torch

    with torch.device("meta"), _keeping_numbers():
        yield


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
