"""Which module is running: its path is on top of a stack while the pass is in it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Pass:
    """The key of a pass' own hooks, which come and go by themselves."""


@contextmanager
def module_paths(modules: Iterable[tuple[str, nn.Module]], stack: list[str]) -> Iterator[None]:
    """Keep the path of the module that is running on top of `stack`."""
    key: Any = Pass()
    mine: int | None = threading.get_ident()  # another thread may be running the same model

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if threading.get_ident() == mine:
                stack.append(path)

        return hook

    def leave(*_: Any) -> None:
        if threading.get_ident() == mine and len(stack) > 1:
            stack.pop()

    # Hooks on each module rather than global ones: those would make compiled wrappers warn, and recompile. They are put
    # where `register_forward_hook` puts them; to go through it, and its handles, costs as much as all calls of them.
    hooked = [(path, m) for path, m in modules if not isinstance(m, torch.jit.ScriptModule)]
    try:
        for path, module in hooked:
            first: Any = module._forward_pre_hooks
            first[key] = enter(path)
            if len(first) > 1:
                first.move_to_end(key, last=False)
            module._forward_hooks[key] = leave
            module._forward_hooks_always_called[key] = True
        yield
    finally:
        mine = None  # copies of modules that the forward made keep their hooks
        for _, module in hooked:
            for hooks in (module._forward_pre_hooks, module._forward_hooks, module._forward_hooks_always_called):
                hooks.pop(key, None)
        del stack[1:]
