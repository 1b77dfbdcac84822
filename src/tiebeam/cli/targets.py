"""From the word on the command line to a model: `module:callable`, a folder or file, a model type, `hf:`."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from tiebeam.checkpoints.near import near
from tiebeam.cli.target import Target
from tiebeam.cli.user_code import running, user_module
from tiebeam.errors import TargetError

CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_EXPECTED = (
    "module:callable, a folder or file with a Hugging Face config.json, a .keras file, a model type, or hf:org/name"
)


def resolve(target: str, *, meta: bool = False, seed: int = 0, imports: tuple[str, ...] = ()) -> Target:
    """Make the model that a target names.

    Args:
        target: `module:callable` (its code runs, from the current folder too), a path, a transformers
            model type, or `hf:org/name` with an optional `@revision`. Only the first runs code that is
            not installed; nothing is ever unpickled.
        meta: Build without memory for the weights.
        seed: Of random weights, below 2**32.
        imports: Modules to import first: classes of the user's that a `.keras` file names.

    Raises:
        TargetError: The target names nothing, or what it names cannot be built.
    """
    if target.startswith("hf:"):
        from tiebeam.cli.transformers_target import from_hub

        return from_hub(target.removeprefix("hf:"), meta=meta, seed=seed)
    path = Path(target).expanduser()
    if path.suffix == ".keras" and path.is_file():
        from tiebeam.cli.keras_target import from_keras_file

        if meta:
            raise TargetError(
                f"'{target}' is loaded with its weights, so --meta has no meaning for it", hint="leave --meta out"
            )
        return from_keras_file(path, imports=imports, seed=seed)
    for name in imports:
        user_module(name)
    if path.exists() and target:
        from tiebeam.cli.transformers_target import from_path

        return from_path(path, meta=meta, seed=seed)
    if CALLABLE.fullmatch(target) and ".py:" not in target:
        return _from_callable(target, meta=meta, seed=seed)
    if not target or re.search(r"[/\\:]|\.(json|py|safetensors|bin|pt|pth|gguf|keras|h5)$", target):
        raise TargetError(_missing(target), got=repr(target), expected=_EXPECTED, hint=_path_hint(target))
    from tiebeam.cli.transformers_target import from_model_type

    beside = Path(*target.split(".")).with_suffix(".py")
    hint = f"{beside} is a module: name what builds the model in it, {target}:build" if beside.is_file() else ""
    if hint and find_spec("transformers") is None:
        raise TargetError(f"'{target}' is the name of a module alone", got=repr(target), expected=_EXPECTED, hint=hint)
    return from_model_type(target, meta=meta, seed=seed, hint=hint)


def _missing(target: str) -> str:
    return f"there is no file or folder '{target}'" if target else "the target is empty"


def _path_hint(target: str) -> str:
    file, _, name = target.partition(":")
    if file.endswith(".py"):
        module = file.removesuffix(".py").replace("/", ".").strip(".")
        return f"name the module rather than the file: {module}:{name or 'build'}"
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", target):
        return f"for a repository on the Hugging Face hub write hf:{target}"
    return "paths are taken from the current folder"


def object_of(target: str, what: str, *, seed: int = 0) -> Any:
    """What `module:callable` gives when it is called, or the object itself where it is no function.

    Raises:
        TargetError: There is none, it needs arguments, it raised, or it gave None.
    """
    found = _found(target, seed)
    if not _is_model_itself(found):
        _check_needs_nothing(found, target, f"a callable without arguments that returns {what}")
        with running(target, f"'{target}' failed"), _building(False, seed):
            found = found()
    if found is None:
        raise TargetError(f"'{target}' returned nothing", got="None", expected=what)
    return found


def _found(target: str, seed: int) -> Any:
    module_name, _, path = target.partition(":")
    with _building(False, seed):  # a module may build its model when it is imported
        module = user_module(module_name)
    return _attribute(module, path, target)


def _from_callable(target: str, *, meta: bool, seed: int) -> Target:
    found = _found(target, seed)
    if _is_model_itself(found):
        if meta:
            raise TargetError(
                f"'{target}' is a model that is built already, so --meta comes too late",
                got=f"an instance of {type(found).__name__}",
                expected="a function that builds it",
            )
        return Target(found)
    _check_needs_nothing(
        found, target, "a callable without arguments that returns a model, (model, inputs) or (model, inputs, params)"
    )
    with running(target, f"'{target}' failed"), _building(meta, seed):
        made = found()
    plain = type(made) is tuple
    model, inputs, params = (*made, None, None)[:3] if plain else (made, None, None)
    if model is None or (plain and len(made) not in (2, 3)):
        raise TargetError(
            f"'{target}' returned no model",
            got=f"a tuple of {len(made)}" if isinstance(made, tuple) else repr(made),
            expected="a model, or a tuple (model, inputs), or (model, inputs, params) of a JAX model",
        )
    return Target(model, inputs, weights="meta" if meta else "code", params=params)


def _attribute(module: ModuleType, path: str, target: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as e:
            names = [n for n in dir(found) if not n.startswith("_")]
            raise TargetError(
                f"'{target}': {getattr(found, '__name__', found)} has no attribute '{part}'",
                got=f"a module with {', '.join(names[:12]) or 'nothing public'}",
                hint=near(part, names) or "name a model, or a function or class that makes one: module:attribute",
            ) from e
    return found


def _is_model_itself(found: object) -> bool:
    """Functions and classes are called for a model; any other object is one."""
    return not (inspect.isroutine(found) or isinstance(found, type | functools.partial))


def _check_needs_nothing(found: Callable[..., Any], target: str, expected: str) -> None:
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return  # no signature to be had: the call will tell
    collected = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in collected]
    if needed:
        raise TargetError(
            f"'{target}' cannot be called",
            got=f"a callable that must have {', '.join(needed)}",
            expected=expected,
            hint="wrap it in a function that fills them in",
        )


@contextmanager
def _building(meta: bool, seed: int) -> Iterator[None]:
    """Seed the generators and, for `meta`, make tensors without memory, where torch is there to ask."""
    from tiebeam.checkpoints.meta import on_meta
    from tiebeam.cli.building import seeded

    with seeded(seed), on_meta() if meta and find_spec("torch") else nullcontext():
        yield
