"""Which module is running: its path is on top of a stack while the pass is in it.

PyTorch calls what stands in a module's `_compiled_call_impl` in place of the module: hooks, forward and all. Hooks
of our own would do as well, but send every call of a module through code that costs three times the call.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

CALL = "_compiled_call_impl"

PLACING = threading.Lock()  # held by whoever puts something there, or takes it out
_this_thread = threading.get_ident


class Followed:
    """Stands in for a module's call, and notes that it runs; another thread that runs the model passes through.

    Attributes:
        before: What stood there: another pass of ours, or what `Module.compile` made of the module.
        thread: The one whose pass it is; None when the pass is over.
    """

    __slots__ = ("before", "call", "others", "path", "stack", "thread")

    def __init__(self, module: nn.Module, path: str, stack: list[str], thread: int) -> None:
        eager: Callable[..., Any] = module._call_impl
        self.before: Callable[..., Any] | None = vars(module).get(CALL)
        self.others = self.before or eager
        self.call = self.before if isinstance(self.before, Followed) else eager  # what was compiled is not seen
        self.path, self.stack = path, stack
        self.thread: int | None = thread

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _this_thread() != self.thread:
            return self.others(*args, **kwargs)
        stack = self.stack
        depth = len(stack)
        stack.append(self.path)
        try:
            return self.call(*args, **kwargs)
        finally:
            del stack[depth:]


@contextmanager
def module_paths(modules: Iterable[tuple[str, nn.Module]], stack: list[str]) -> Iterator[None]:
    """Keep the path of the module that is running on top of `stack`."""
    placed: list[tuple[dict[str, Any], Followed]] = []
    thread = _this_thread()
    modules = list(modules)
    copied = _copied(m for _, m in modules)
    with PLACING:
        for path, module in modules:
            if not isinstance(module, torch.jit.ScriptModule) and id(module) not in copied:
                own = vars(module)
                followed = own[CALL] = Followed(module, path, stack, thread)
                placed.append((own, followed))
    try:
        yield
    finally:
        with PLACING:
            for own, followed in placed:
                followed.thread = None
                _take_out(own)
        del stack[1:]


def _copied(modules: Iterable[nn.Module]) -> set[int]:
    """Modules that run as copies of their attributes, one a device: a copy would call the module itself."""
    parallel = [m for m in modules if isinstance(m, nn.DataParallel) and len(m.device_ids) > 1]
    return {id(inner) for m in parallel for inner in m.module.modules()}


def _take_out(own: dict[str, Any]) -> None:
    """Take those out of a module that are through; passes of other threads may end in any order."""
    top = own.get(CALL)
    if not isinstance(top, Followed):  # the model put something there itself
        return
    while isinstance(top, Followed) and top.thread is None:
        top = top.before
    if top is None:
        del own[CALL]
    else:
        own[CALL] = top


def own_call(module: nn.Module) -> Callable[..., Any] | None:
    """What stands in for a module's call, passes of ours aside."""
    call: Callable[..., Any] | None = vars(module).get(CALL)
    while isinstance(call, Followed):
        call = call.before
    return call
