"""Programs that were traced before, kept as `jax.jit` keeps them: to trace and compile costs more than to measure.

So a model that is measured again on arrays of the same kinds is not traced again. Numbers, strings and flags that it
closes over are compared; what other Python it looks at counts as it was. A few programs are kept, the latest ones.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any
from weakref import finalize

import jax

from tiebeam.backends.jax.kinds.held import Held, Known
from tiebeam.backends.jax.kinds.tree import Tree, kind_of
from tiebeam.backends.jax.trace import Program, program_of

KEPT = 8

_LOCK = threading.Lock()
_PROGRAMS: OrderedDict[Hashable, Program] = OrderedDict()


def recalled(held: Held, arrays: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Program:
    """The program of a model on these inputs, traced now or before; raises what `program_of` raises."""
    given = Tree((args, dict(kwargs)))
    key = _key(held, arrays, given)
    if key is None:
        return program_of(held, arrays, args, kwargs)
    with _LOCK:
        found = _PROGRAMS.get(key)
        if found is not None:
            _PROGRAMS.move_to_end(key)
            return replace(found, inputs=given.arrays)
    program = program_of(held, arrays, args, kwargs)
    with _LOCK:
        _PROGRAMS[key] = replace(program, inputs=[])  # what it compiles is shared
        while len(_PROGRAMS) > KEPT:
            _PROGRAMS.popitem(last=False)
    if isinstance(held.model, FunctionType):  # what it closes over stands in the program, and goes with it
        finalize(held.model, _PROGRAMS.pop, key, None).atexit = False
    return program


def _key(held: Held, arrays: Sequence[Any], given: Tree) -> Hashable | None:
    """What the program depends on, or None where that cannot be compared."""
    if not isinstance(held, Known):
        return None
    mesh = getattr(jax.sharding, "get_abstract_mesh", lambda: None)()
    config: Any = jax.config  # whose settings are not declared
    settings = (config.jax_enable_x64, config.jax_default_matmul_precision, mesh)
    key = (type(held), held.kind, tuple(map(kind_of, arrays)), given.kind, settings)
    return key if hashable(key) else None


def hashable(key: Any) -> bool:
    """Whether a key can be looked up: a tree may hold anything."""
    try:
        hash(key)
    except TypeError:
        return False
    return True
