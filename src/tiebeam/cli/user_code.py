"""Code of the user's that a target names: imported from the current folder first, and what it raises is explained."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tiebeam.checkpoints.near import near
from tiebeam.errors import TargetError


def user_module(name: str) -> ModuleType:
    """A module of the user's, from the current folder first; its code runs.

    Raises:
        TargetError: It cannot be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with running(name, f"the module '{name}' cannot be imported"):
        return importlib.import_module(name)


@contextmanager
def running(target: str, what: str) -> Iterator[None]:
    """Whatever the user's code raises is a target that cannot be built; the original is chained."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as e:
        frames = [f for f in traceback.extract_tb(e.__traceback__)[1:] if not f.filename.startswith("<")]
        ours = (importlib.__file__, *map(str, Path(__file__).parent.glob("*.py")))  # who imports is no news
        frames = [f for f in frames if f.filename not in ours]
        at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        raise TargetError(
            what,
            got=f"{type(e).__name__}: {e}{at}",
            hint=_explained(e, target) or "--debug shows the traceback",
        ) from e


def _explained(error: BaseException, target: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and target.split(":")[0].startswith(error.name):
        here = [file.stem for file in Path.cwd().glob("*.py")]
        return near(error.name, here) or "the current folder is searched first, then what is installed"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        keys = getattr(type(frame.f_locals.get("self")), "_tied_weights_keys", None)
        if isinstance(keys, list) and keys and "list" in str(error):
            name = type(frame.f_locals["self"]).__name__
            pairs = ", ".join(f"{k!r}: '<input embedding>.weight'" for k in keys)
            return f"transformers 5 takes a mapping, target to source: {name}._tied_weights_keys = {{{pairs}}}"
    return ""
