"""Write a model into a folder that appears whole or not at all; how, is one file a framework."""

import shutil
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.cli.output import permissions
from tiebeam.errors import TargetError

if TYPE_CHECKING:
    from tiebeam.core.report import Report

Writer = Callable[[Any, Any, "Report", Path], None]
WRITERS = {
    "torch": "tiebeam.cli.save_torch",
    "jax": "tiebeam.cli.save_jax",
    "keras": "tiebeam.cli.save_keras",
}
INDEX = "model.safetensors.index.json"
LAST = ("config.json", "report.json")  # what speaks of the weights comes after them


def check_out(out: Path, *, force: bool) -> None:
    """Refuse, before any work is done, a place that must not be written to. A link to a folder is that folder.

    Raises:
        TargetError: `out` is a file, its parent is missing, or it holds something and not `force`.
    """
    if out.exists() and not out.is_dir():
        raise TargetError(f"'{out}' cannot be the output folder", got="a file", expected="a folder, or nothing")
    if not out.resolve().parent.is_dir():
        missing = out.resolve().parent
        raise TargetError(f"'{out}' cannot be made", got=f"no folder '{missing}'", expected="its parent")
    if out.is_dir() and any(out.iterdir()) and not force:
        held = ", ".join(sorted(p.name for p in out.iterdir())[:5])
        raise TargetError(
            f"the output folder '{out}' is not empty",
            got=held,
            hint="name another folder, or add --force to replace the files of the same names",
        )


def save(model: Any, report: "Report", out: Path, *, params: Any = None, force: bool = False) -> tuple[str, ...]:
    """Write weights and config, each tensor once.

    Everything is written to a temporary folder beside `out`, which then takes its name. With `force` and
    a folder that holds something, the new files replace those of the same name one by one, the weights
    first; other files stay.

    Args:
        model: With real weights.
        report: What was done.
        out: The folder.
        params: What a JAX model that holds no arrays is applied to.
        force: Replace files in a folder that is not empty.

    Returns:
        Names of the files written.

    Raises:
        TargetError: The model has no values, its framework has no files, or the folder cannot be written.
    """
    check_out(out, force=force)
    write = _writer(report)
    place = out.resolve()  # a link stays, and the folder it points to is filled
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            write(model, params, report, draft)
            names = tuple(sorted(p.name for p in draft.iterdir()))
            for path in (draft, *draft.rglob("*")):
                path.chmod(permissions(folder=path.is_dir()))
            _publish(draft, place, names)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as e:
        raise TargetError(f"the folder '{out}' cannot be written", got=str(e)) from e
    return names


def _writer(report: "Report") -> Writer:
    home = WRITERS.get(report.framework)
    if home is None:
        raise TargetError(
            f"models of {report.framework} are not written to files",
            expected=f"a model of {', '.join(WRITERS)}",
            hint="call tiebeam.initialize in Python and save with the framework's own means",
        )
    found: Writer = import_module(home).write
    return found


def _publish(draft: Path, out: Path, names: tuple[str, ...]) -> None:
    here = out == Path.cwd()  # replacing it would leave the shell in a folder that is gone
    if not out.is_dir() or (not any(out.iterdir()) and not here):
        draft.replace(out)  # over an empty folder too
        return
    for name in sorted(names, key=lambda n: n in LAST):
        (draft / name).replace(out / name)
    if INDEX not in names:
        (out / INDEX).unlink(missing_ok=True)  # it would speak of files that are no longer the model
