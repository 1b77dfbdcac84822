"""Meta passes: small values that do exist are kept beside the meta tensors.

A meta tensor has no elements, yet masks, positions, shapes and constants made in `forward` do not
depend on any weight. Their elements are computed on the CPU beside the pass, so that `.item()`, `nonzero`
and the like are answered as a real pass would. Where an answer would need activations or weights it is made up,
and the tensor, like all that is computed from it, is remembered as invented: a made-up number is never taken for one
that the model has.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


def valueless(t: torch.Tensor) -> bool:
    """Whether a tensor has no elements to read: on meta, or fake."""
    return t.device.type == "meta" or isinstance(t, FakeTensor)


LIMIT = 1 << 16  # elements of a shadow: masks and positions, never activations


def tensors_in(args: Any) -> list[torch.Tensor]:
    """Every tensor in nested lists, tuples and dicts."""
    if isinstance(args, torch.Tensor):
        return [args]
    if isinstance(args, (list, tuple)):
        return [t for a in args for t in tensors_in(a)]
    if isinstance(args, dict):
        return [t for a in args.values() for t in tensors_in(a)]
    return []


def map_tensors(args: Any, f: Callable[[torch.Tensor], Any]) -> Any:
    """`args` with every tensor replaced by `f(tensor)`."""
    if isinstance(args, torch.Tensor):
        return f(args)
    if isinstance(args, (list, tuple)):
        return type(args)(map_tensors(a, f) for a in args)
    if isinstance(args, dict):
        return {k: map_tensors(a, f) for k, a in args.items()}
    return args


class Shadows:
    """CPU companions of small meta values, by value id.

    Args:
        fill: Of floats that are made up. NaN marks what is computed from it, also where it leaves the tensors;
            integers have none, and are zero.
    """

    def __init__(self, fill: float = math.nan) -> None:
        self.fill = fill
        self.of: dict[int, torch.Tensor] = {}
        self.invented: set[int] = set()
        self.unknown: set[int] = set()  # meta values known to have no companion

    def give(self, value: int, t: torch.Tensor) -> torch.Tensor:
        """The companion of a meta tensor, made up where it is unknown."""
        if not valueless(t):
            return t
        if value not in self.of:
            if t.numel() > LIMIT:
                raise NotImplementedError(f"{t.numel()} elements of unknown value")
            made_up = self.fill if t.is_floating_point() or t.is_complex() else 0
            self.of[value] = torch.full(t.shape, made_up, dtype=t.dtype, device="cpu")
            self.invented.add(value)
            self.unknown.discard(value)
        return self.of[value].as_strided(t.shape, self.of[value].stride()) if t.dim() else self.of[value]

    def follow(
        self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, value: Callable[[torch.Tensor], int]
    ) -> dict[int, torch.Tensor]:
        """Companions of `out`, where all that `func` reads has one and they are small.

        Must be called before the ledger gives written tensors their new version.
        """
        results = tensors_in(out)
        if not results or any(not valueless(t) or t.numel() > LIMIT for t in results):
            return {}
        read = tensors_in((args, kwargs))
        missing = {value(t) for t in read if valueless(t)} - self.of.keys()
        if missing:
            self.unknown |= missing
            return {}
        if not read and all(t.is_floating_point() and t.numel() > 1 for t in results):
            return {}  # a fresh float tensor: nothing will ask for its elements
        with _disable_current_modes():  # a fake mode further out would make them fake again
            made = func(*self._on_cpu(args, value), **self._on_cpu(kwargs, value))
        return dict(zip(map(id, results), tensors_in(made), strict=True))

    def answer(
        self, func: Any, args: Any, kwargs: dict[str, Any], value: Callable[[torch.Tensor], int]
    ) -> tuple[Any, bool]:
        """Run `func` on companions; the second result says whether any of them was made up."""
        invented = False

        def companion(t: torch.Tensor) -> torch.Tensor:
            nonlocal invented
            v = value(t)
            given = self.give(v, t).clone()
            invented |= v in self.invented
            return given

        with _disable_current_modes():
            return func(*map_tensors(args, companion), **map_tensors(kwargs, companion)), invented

    def _on_cpu(self, a: Any, value: Callable[[torch.Tensor], int]) -> Any:
        # A method, not a nested function that calls itself: that would be a cycle, and keep all records alive.
        if isinstance(a, torch.Tensor):
            return self.of[value(a)].clone() if valueless(a) else a
        if isinstance(a, torch.device):
            return torch.device("cpu")
        if isinstance(a, (list, tuple)):
            return type(a)(self._on_cpu(x, value) for x in a)
        if isinstance(a, dict):
            return {k: self._on_cpu(x, value) for k, x in a.items()}
        return a
