"""Models from `.keras` files: Keras's own loader in safe mode, after the archive was judged."""

import copy
import importlib
import math
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tiebeam.cli.keras_archive import check_names, check_no_code, held_bytes, objects_in, read_config
from tiebeam.cli.target import Target
from tiebeam.cli.user_code import user_module
from tiebeam.errors import BackendError, TargetError

BACKENDS = ("jax", "torch", "tensorflow")

_FLOOR = 64 * 2**20  # bytes of weights that need no file to stand for them


def choose_backend(name: str | None) -> None:
    """Have Keras compute with `name`, which it decides when it is imported.

    Raises:
        BackendError: It was imported already, and computes with another.
    """
    if name is None:
        return
    keras = sys.modules.get("keras")
    if keras is not None and keras.config.backend() != name:
        raise BackendError(
            f"Keras cannot change over to {name}",
            got=f"Keras, imported already, on {keras.config.backend()}",
            expected="a process in which it was not imported yet",
        )
    os.environ["KERAS_BACKEND"] = name


def from_keras_file(path: Path, *, imports: tuple[str, ...], seed: int) -> Target:
    """The model of a `.keras` file, with the weights in it; not compiled.

    Args:
        path: The file.
        imports: Modules that register classes of the user's; their code runs.
        seed: Of what the file does not hold.

    Raises:
        TargetError: The file is none of Keras's, names code that is not, or is not what its config asks for.
        BackendError: Keras, or what it computes with, is missing.
    """
    from tiebeam.cli.building import seeded

    config = read_config(path)
    check_no_code(config, path)
    if not imports:
        check_names(config, path, frozenset())
    keras = _keras()
    if any(str(item.get("module")).startswith("tiebeam.") for item in objects_in(config, path)):
        importlib.import_module("tiebeam.keras")  # Keras imports no packages but its own
    for name in imports:
        user_module(name)
    check_names(config, path, frozenset(keras.saving.get_custom_objects()))
    with seeded(seed):
        _check_size(keras, config, path)
        try:
            model = keras.saving.load_model(path, safe_mode=True, compile=False)
        except Exception as e:  # whatever layers raise on a config of another release
            raise _unbuilt(path, e) from e
    return Target(model, None, "file", (f"Keras computes with {keras.config.backend()}",))


def _check_size(keras: Any, config: dict[str, Any], path: Path) -> None:
    """Refuse a config whose model is larger than the weights beside it, before memory is taken for it."""
    bare = copy.deepcopy(config)
    for item in objects_in(bare, path):
        item.pop("compile_config", None)  # an optimizer has variables, which this scope makes none of
    try:
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(bare, safe_mode=True)
    except Exception as e:  # as above
        raise _unbuilt(path, e) from e
    needed = sum(_bytes_of(v) for v in model.variables)
    held = held_bytes(path)
    if needed > max(2 * held, _FLOOR):
        raise TargetError(
            f"the weights in '{path}' are not those of its config",
            got=f"{held:,} bytes of weights",
            expected=f"about {needed:,}, for the {len(model.variables)} variables of {type(model).__name__}",
        )


def _bytes_of(variable: Any) -> int:
    bits = re.search(r"\d+", str(variable.dtype))  # none in "bool"
    return int(math.prod(variable.shape)) * int(bits[0] if bits else 8) // 8


def _unbuilt(path: Path, error: Exception) -> TargetError:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return TargetError(
        f"Keras cannot load '{path}' in safe mode",
        got=f"{type(error).__name__}: {first[:300]}",
        hint="classes of your own: --import MODULE; what needs unsafe mode: build the model in a function of yours "
        "and inspect module:callable",
    )


def _keras() -> Any:
    if find_spec("keras") is None:
        raise BackendError(".keras files need Keras", got="no keras", hint="pip install 'tiebeam[keras]'")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's search for accelerators reads like an error
    try:
        return importlib.import_module("keras")
    except ImportError as e:
        raise BackendError(
            "Keras cannot be imported",
            got=f"{type(e).__name__}: {e}",
            hint=f"say what it is to compute with: --backend {' or '.join(BACKENDS)}, or KERAS_BACKEND",
        ) from e
