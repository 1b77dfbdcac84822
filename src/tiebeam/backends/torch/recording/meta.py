"""Recording without values: the same as `record`, with shadows beside the meta tensors."""

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from tiebeam.backends.torch.recording.ledger import number_of
from tiebeam.backends.torch.recording.record import Recorder
from tiebeam.backends.torch.recording.schema import READS_OUT, Schema, schema_of
from tiebeam.backends.torch.recording.shadow import LIMIT, Shadows, tensors_in, valueless
from tiebeam.errors import TraceError


class MetaRecorder(Recorder):
    """A recorder for models on meta or fake tensors.

    `.item()` and operations whose result depends on elements are answered from the shadows, made up where
    those are unknown, so that control flow goes on; what is made up is remembered in `answers`.

    Args:
        fill: Made-up floats: NaN, which shows wherever it went, or a number for a model that refuses NaN.
        other: The pass that confirms another: a number that nobody knows is another one.
    """

    decomposes = False  # fake tensors do that themselves

    def __init__(
        self, *args: Any, fake: FakeTensorMode | None = None, fill: float = math.nan, other: bool = False
    ) -> None:
        super().__init__(*args)
        self.fake = fake
        self.other = other
        self.shadows = Shadows(fill)
        self._beside: dict[int, torch.Tensor] = {}
        self._invented = False  # something made up went into the operation

    def give(self, t: torch.Tensor, value: int) -> None:
        """A companion for an integer input whose elements nobody knows: ones or twos (a token, a kept position)."""
        if valueless(t) and not t.is_floating_point() and t.numel() <= LIMIT:
            with _disable_current_modes():
                self.shadows.of[value] = torch.full(t.shape, 1 + self.other, dtype=t.dtype, device="cpu")

    def run(self, func: Any, schema: Schema, args: Any, kwargs: dict[str, Any]) -> Any:
        self._beside = {}  # of the operation before: an alias leaves it unread, and ids are used again
        try:
            if schema.name in READS_OUT and _any_valueless(args):
                return self._number(func, args, kwargs)
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if not _any_valueless((args, kwargs)):
                raise
            return self._instead(func, schema, args, kwargs, error)

    def _number(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A Python number. It may go anywhere: one that is made up and no NaN shows in another pass alone."""
        made, invented = self._answer(func, args, kwargs)
        if not invented or made != made:
            return made
        self.items = True
        return made ^ self.other if isinstance(made, bool) else made + self.other

    def _answer(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, bool]:
        made, invented = self.shadows.answer(func, args, kwargs, self.ledger.value)
        if invented:
            self.answers.append(schema_of(func).name)
        return made, invented

    def _instead(self, func: Any, schema: Schema, args: Any, kwargs: dict[str, Any], error: Exception) -> Any:
        """What a data-dependent operation gives: its result on the shadows."""
        if any(t.is_floating_point() and t.numel() > LIMIT for t in tensors_in((args, kwargs))):
            raise _untraceable(schema, self.modules[-1]) from error
        try:
            made, _ = self._answer(func, args, kwargs)
        except (NotImplementedError, RuntimeError, IndexError) as second:
            raise _untraceable(schema, self.modules[-1]) from second
        if isinstance(made, torch.Tensor):
            return self._to_meta(made)
        if isinstance(made, (list, tuple)):
            return type(made)(self._to_meta(m) if isinstance(m, torch.Tensor) else m for m in made)
        return made

    def _to_meta(self, made: torch.Tensor) -> torch.Tensor:
        out = made.to("meta") if self.fake is None else self.fake.from_tensor(made)
        if made.numel() <= LIMIT:
            self._beside[id(out)] = made
        return out

    def follow(self, read: list[int], func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        self._invented = not self.shadows.invented.isdisjoint(read)
        if self._beside or not self.shadows.unknown.isdisjoint(read):
            return
        try:
            self._beside = self.shadows.follow(func, args, kwargs, out, self.ledger.value)
        except (NotImplementedError, RuntimeError, TypeError):  # no CPU kernel for these: nothing is known
            self._beside = {}

    def facts(self, t: torch.Tensor) -> dict[str, Any]:
        return number_of(t if self._invented else self._beside.get(id(t), t))

    def made(self, t: torch.Tensor, value: int) -> None:
        shadow = self._beside.pop(id(t), None)
        if shadow is not None:
            self.shadows.of[value] = shadow
            if self._invented:
                self.shadows.invented.add(value)
        elif valueless(t):
            self.shadows.unknown.add(value)


def _any_valueless(args: Any) -> bool:
    return any(valueless(t) for t in tensors_in(args))


def _untraceable(schema: Schema, where: str) -> TraceError:
    return TraceError(
        f"the operation aten::{schema.name} in {where or 'the model'} cannot be followed without values",
        got="meta tensors, and an answer that depends on activations",
        hint="inspect the model on real tensors, or with a smaller configuration",
    )
