"""Watching a tie: every place that holds it reports when something else is put there.

A call may part a tie and join it again before it returns (a resize, a functional call), so what counts is how things
stand when the caller's own line is done. That line is found on the stack at the moment of the write; the next event in
its frame is where the error is raised. Where something else traces that thread already (a debugger), the next step of
an optimizer or the end of the block is.
"""

import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tiebeam.backends.torch.names import all_parameters
from tiebeam.backends.torch.operations import watched
from tiebeam.backends.torch.operations.watched import watch, watch_no_more
from tiebeam.core.operations.ties import as_named_now
from tiebeam.errors import TieBroken

LIBRARIES = ("site-packages", "dist-packages", "<frozen", sysconfig.get_paths()["stdlib"])
"""What stands in the path of code that nobody writes into their own program."""

_HERE = (__name__, watched.__name__)


@dataclass(frozen=True, slots=True)
class Culprit:
    """The call that parted a tie.

    Attributes:
        place: File and line of the caller's own code.
        source: That line.
        inside: The function that put something else there.
    """

    place: str
    source: str
    inside: str

    def __str__(self) -> str:
        return f"{self.source or 'a call'}  ({self.place}, in {self.inside})"


class TorchGuard:
    """Fails as soon as names of a module are no longer one parameter.

    Args:
        model: The module.
        ties: Groups of paths that are one parameter.
        apart: Groups of paths that are as many parameters.
    """

    def __init__(self, model: nn.Module, ties: Sequence[Sequence[str]], apart: Sequence[Sequence[str]] = ()) -> None:
        self.model = model
        self.ties = tuple(tuple(group) for group in ties)
        self.apart = tuple(tuple(group) for group in apart)
        self.culprit: Culprit | None = None
        self._watched: dict[int, nn.Module] = {}
        self._waiting: FrameType | None = None
        self._thread: int | None = None
        self._raising = False
        self._hook: Any = None
        self._entered = 0

    def check(self, model: nn.Module | None = None) -> None:
        """Raise where a tie is gone, in the guarded model or in a copy of it.

        Args:
            model: A copy (of `deepcopy`, of `AveragedModel`, loaded from a pickle, the module of an exported program).

        Raises:
            TieBroken: With the names, and the call that did it where it was seen.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        target = self.model if model is None else model
        names = list(all_parameters(target))
        culprit = self.culprit if model is None else None
        for group, one in (*((g, True) for g in self.ties), *((g, False) for g in self.apart)):
            now = as_named_now(group, names)
            tensors = [_held(target, n) for n in now]
            if not _as_wanted(tensors, one=one):
                raise _broken(now, tensors, culprit, type(target).__name__, one=one)
        self.culprit = None if model is None else self.culprit

    def hook(self, *_: Any) -> None:
        """`check` for whatever calls hooks: `optimizer.register_step_pre_hook(guard.hook)`."""
        self.check()

    def start(self) -> None:
        """Watch from here on; `with` does it. What watches already goes on."""
        self.check()
        self._watch()
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self.hook)

    def _watch(self) -> None:
        """Watch the modules that hold the ties; those that were put there since, too."""
        for module in _along(self.model, (*self.ties, *self.apart)):
            watch(module, self._changed)
            self._watched[id(module)] = module

    def stop(self) -> None:
        """Leave everything as it was."""
        self._wait_no_more()
        for module in self._watched.values():
            watch_no_more(module, self._changed)
        self._watched.clear()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __enter__(self) -> "TorchGuard":
        self.start()
        self._entered += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        __tracebackhide__ = True
        self._entered -= 1
        if not self._entered:
            self.stop()
        if kind is None:
            self.check()

    def _sound(self) -> bool:
        groups = (*((g, True) for g in self.ties), *((g, False) for g in self.apart))
        return all(_as_wanted([_held(self.model, n) for n in group], one=one) for group, one in groups)

    def _changed(self) -> None:
        """Something was put into a place that is watched."""
        self._watch()
        if self._sound():
            self.culprit = None
            return
        if self.culprit is not None:
            return
        frames = list(_stack(sys._getframe(1)))
        own = next((f for f in frames if not _in_library(f) and not self._of_the_model(f)), frames[-1])
        self.culprit = _culprit(own, frames[0])
        self._wait_for(own)

    def _of_the_model(self, frame: FrameType) -> bool:
        """Whether a method of the model runs there: what it parts it may join again before it returns."""
        runs = frame.f_locals.get("self")
        return isinstance(runs, nn.Module) and any(m is runs for m in self.model.modules())

    def _wait_for(self, frame: FrameType) -> None:
        """Look again as soon as the line that runs in this frame is done."""
        if sys.gettrace() is not None:
            return
        self._waiting, self._raising, self._thread = frame, False, threading.get_ident()
        frame.f_trace = self._returned
        sys.settrace(self._no_trace)

    def _returned(self, _: FrameType, event: str, __: Any) -> Any:
        if event not in ("line", "return"):
            self._raising = event == "exception"
            return self._returned
        leaves_by_error = event == "return" and self._raising  # that error is not to be hidden
        self._wait_no_more()
        if not leaves_by_error:
            try:
                self.check()
            except TieBroken:
                self.stop()  # raised where a block ends, an error passes its `__exit__` by
                raise
        return None

    def _wait_no_more(self) -> None:
        if self._waiting is None:
            return
        self._waiting.f_trace = None
        self._waiting = None
        if self._thread == threading.get_ident():  # another thread's tracing is its own affair
            sys.settrace(None)

    def _no_trace(self, *_: Any) -> None:
        """Trace no new frame: the one that is waited for has its own."""
        if self._waiting is None:
            sys.settrace(None)


def _held(model: nn.Module, name: str) -> torch.Tensor | None:
    """The parameter (or the buffer, of a table that is not trained) at a path, or None where none stands there."""
    *home, attribute = name.split(".")
    module: Any = model
    for step in home:
        module = module._modules.get(step)
        if not isinstance(module, nn.Module):
            return None
    found: torch.Tensor | None = module._parameters.get(attribute, module._buffers.get(attribute))
    return found


def _as_wanted(tensors: Sequence[torch.Tensor | None], *, one: bool) -> bool:
    """Whether there are all of them, and they are one object, or as many as there are."""
    found = {id(t) for t in tensors if t is not None}
    there = all(t is not None for t in tensors)
    return there and len(found) == (1 if one else len(tensors))


def _along(model: nn.Module, ties: Sequence[Sequence[str]]) -> list[nn.Module]:
    """The modules on the way to every name, each once."""
    found: dict[int, nn.Module] = {id(model): model}
    for name in (n for group in ties for n in group):
        module = model
        for step in name.split(".")[:-1]:
            below = module._modules.get(step)
            if below is None:
                break
            module = found[id(below)] = below
    return list(found.values())


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Frames from the innermost outwards, without those that watch."""
    while frame is not None:
        if frame.f_globals.get("__name__") not in _HERE:
            yield frame
        frame = frame.f_back


def _in_library(frame: FrameType) -> bool:
    ours = frame.f_globals.get("__name__", "").startswith("tiebeam.")
    return ours or any(part in frame.f_code.co_filename for part in LIBRARIES)


def _culprit(own: FrameType, inner: FrameType) -> Culprit:
    file, line = own.f_code.co_filename, own.f_lineno
    source = linecache.getline(file, line, own.f_globals).strip()
    return Culprit(f"{file}:{line}", source, inner.f_code.co_qualname)


def _broken(
    names: Sequence[str], tensors: Sequence[torch.Tensor | None], culprit: Culprit | None, model: str, *, one: bool
) -> TieBroken:
    by = f", since {culprit}" if culprit is not None else ""
    if not one and all(t is not None for t in tensors):
        return TieBroken(
            f"{' and '.join(map(repr, names))} of {model} are one parameter now" + by,
            expected="parameters of their own",
            hint="what one of them held is gone: load it again, and let the config say that they are not tied "
            "(tiebeam.untie does)",
        )
    first = tensors[0]
    other = next((i for i, t in enumerate(tensors) if t is None or t is not first), 0)
    return TieBroken(
        f"{names[other]!r} and {names[0]!r} of {model} are no longer {'one parameter' if one else 'there'}" + by,
        got="; ".join(f"{n}: {_said(t)}" for n, t in zip(names, tensors, strict=True)) + _apart(first, tensors[other]),
        expected="one parameter under these names",
        hint=f"tiebeam.retie(model, ties=[{tuple(names)!r}]) makes them one again",
    )


def _said(t: torch.Tensor | None) -> str:
    return "no parameter any more" if t is None else f"{t.dtype} {tuple(t.shape)} on {t.device}"


def _apart(a: torch.Tensor | None, b: torch.Tensor | None) -> str:
    if a is None or b is None:
        return ""
    plain = a.shape == b.shape and not a.is_meta and not b.is_meta and a.layout == b.layout == torch.strided
    if not plain or not a.is_floating_point() or a.device != b.device:
        return ""
    if a.untyped_storage()._cdata == b.untyped_storage()._cdata:
        return ", two parameters on one storage"
    gap = float((a.detach().double() - b.detach().double()).abs().max())
    return f", entries up to {gap:.3g} apart" if gap else ", equal in every entry"
