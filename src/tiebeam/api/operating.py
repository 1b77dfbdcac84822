"""One way to change a live model: look, validate, write, look again, and undo everything on failure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiebeam.api.inspection import report_of
from tiebeam.api.look import Look, look
from tiebeam.api.no_meaning import no_meaning
from tiebeam.backends import entry_of, resolve
from tiebeam.backends.protocol import Operable, Operator
from tiebeam.checkpoints.declared import declared_by
from tiebeam.checkpoints.writing_fields import Setting
from tiebeam.core.operations.change import Change
from tiebeam.core.operations.transaction import Transaction
from tiebeam.errors import InputError, TieError, TraceError


@dataclass(frozen=True)
class Site:
    """A model to be changed, and what writes to it."""

    model: Any
    operator: Operator

    def seen(self, inputs: Any) -> Look:
        """One look, before anything is written."""
        seen = look(self.model, inputs)
        if not seen.traced.graph.meta:
            self.operator.check_here([n for t in seen.tables for n in t.names])
        return seen

    def again(self, seen: Look, operation: str, vocab: int | None = None) -> Look:
        """Another look, after it: with the same inputs, or with ids that a smaller vocabulary has too.

        Raises:
            TieError: The model does not run any more.
        """
        args, kwargs = (
            (seen.args, seen.kwargs) if vocab is None else self.operator.within(seen.args, seen.kwargs, vocab)
        )
        try:
            return replace(seen, args=args, kwargs=kwargs, declared=declared_by(self.model)).again()
        except (InputError, TraceError) as error:
            raise TieError(
                f"the model does not run after {operation}, which was undone",
                got=str(error).splitlines()[0],
                expected="a model that runs as it ran before",
                hint="something else in it counts on what was changed, a mask over the vocabulary say: change that "
                "along with it"
                if vocab is not None
                else "",
            ) from error


def site_of(model: Any, optimizer: Any, operation: str) -> Site:
    """A model whose tables can be changed.

    Raises:
        BackendError: Its framework has no such operation, with the reason.
        InputError: The optimizer is none, or of another model.
    """
    entry = entry_of(model, ())
    if entry.functional:
        raise no_meaning(operation, model, entry, "")
    backend = resolve(model)
    if not isinstance(backend, Operable):
        raise no_meaning(operation, model, None, backend.name)
    return Site(model, backend.operator(optimizer))


def put(settings: Iterable[Setting], undo: Transaction) -> tuple[str, ...]:
    """Set fields of the config; what was set."""
    said = []
    for setting in settings:
        undo.did(setting.put())
        said.append(str(setting))
    return tuple(said)


def nothing(operation: str, names: Sequence[str], seen: Look | None, settings: Iterable[Setting] = ()) -> Change:
    """The tensors are as asked; the config may not know."""
    with Transaction() as undo:
        config = put(settings, undo)
    report = None if seen is None else report_of(seen)
    return Change(operation, (), None, config, (), (f"{', '.join(names)}: as asked already",), report)
