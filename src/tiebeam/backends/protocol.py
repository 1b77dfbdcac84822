"""What a backend implements: one class over one model."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from tiebeam.core.facts import Table
from tiebeam.core.finding import Finding
from tiebeam.core.findings import Fixes
from tiebeam.core.measuring.gradient_check import MovableTable
from tiebeam.core.measuring.passes import Passed, Request, Wanted
from tiebeam.core.measuring.sensitivity import QuantisableTable
from tiebeam.core.operations.conflicts import OnConflict
from tiebeam.core.operations.loading import Loaded
from tiebeam.core.operations.rows import RowPlan
from tiebeam.core.operations.transaction import Transaction
from tiebeam.core.reading.arithmetic import Arithmetic
from tiebeam.core.statistics import Weights
from tiebeam.errors import ShapeError
from tiebeam.ir import Graph, Leaf


class RefusedError(Exception):
    """The model's own forward raised; the cause is chained."""


class Trace(Protocol):
    """A traced pass.

    Attributes:
        graph: What was executed.
        items: A Python number was read out of a tensor that an input reached.
    """

    @property
    def graph(self) -> Graph:
        """What was executed."""
        ...

    @property
    def items(self) -> bool:
        """Whether a Python number was read out of a tensor that an input reached."""
        ...


class Model(Protocol):
    """One model of one framework."""

    framework: str

    @property
    def packages(self) -> tuple[str, ...]:
        """What the framework consists of, for the versions in a report."""
        ...

    @property
    def name(self) -> str:
        """For messages: its class."""
        ...

    @property
    def model(self) -> Any:
        """The framework's own object."""
        ...

    @property
    def forward(self) -> Callable[..., Any]:
        """What the inputs go to, for its signature."""
        ...

    def arguments(self, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs as positional and keyword arguments, NumPy arrays on the model's device."""
        ...

    def shorter(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Sequence[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The same arguments at other lengths and with other values, best first."""
        ...

    def trace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        logits: bool = False,
        seed: int | None = None,
        measure: bool = True,
    ) -> Any:
        """One forward pass, leaving the model as it was; `logits` measures their std too.

        `measure` False: the structure alone is wanted, and measuring may be left out.
        """
        ...

    def diagnose(self) -> Finding | ShapeError | None:
        """Why a pass that the model refused failed, where its weights say so."""
        ...

    def weights(self, traced: Any) -> Weights:
        """Numbers about the weights of a trace."""
        ...

    def parameters(self) -> int:
        """Elements of all parameters, each once."""
        ...

    def vocab_bound(self) -> int | None:
        """An upper bound for token ids, or None."""
        ...

    def check_writable(self, traced: Any, leaf: Leaf) -> None:
        """Raise where the table could not be written."""
        ...

    def write(
        self,
        traced: Any,
        leaf: Leaf,
        *,
        vocab_axis: int,
        seed: int,
        ordinal: int,
        std: float,
        zero_rows: tuple[int, ...],
    ) -> None:
        """Draw the table anew."""
        ...

    def keep(self, traced: Any, leaf: Leaf) -> Callable[[], None]:
        """Copy a table; the result puts it back."""
        ...

    def zero_rows(self, traced: Any, leaf: Leaf, vocab_axis: int) -> tuple[int, ...]:
        """Rows that are to stay zero."""
        ...

    def zero(self, names: Sequence[str]) -> tuple[tuple[str, ...], Callable[[], None]]:
        """Set trainable parameters to zero: the names that were, and what puts them back."""
        ...

    def fixes(self) -> Fixes:
        """Code that mends this model."""
        ...

    def trainable_elsewhere(self, names: Sequence[str]) -> float:
        """Share of the other parameters' elements that is trainable."""
        ...

    def body_dtype(self, names: Sequence[str]) -> str | None:
        """Dtype of most of the other parameters."""
        ...

    def shared(self) -> tuple[tuple[str, ...], ...]:
        """Groups of parameter paths that are one object."""
        ...

    def devices(self) -> dict[str, str]:
        """Devices by a device map, by module path."""
        ...


@runtime_checkable
class Functional(Protocol):
    """A model whose arrays do not change: what is written is kept aside."""

    def rebuilt(self) -> Any:
        """The caller's model, or its params, with what was written."""
        ...


@runtime_checkable
class Described(Protocol):
    """A model that knows which inputs it takes."""

    def example(self, make: Callable[[str, tuple[int | None, ...], str], Any]) -> Any | None:
        """Inputs of arrays that `make` makes of a name, a shape (None: any size) and a dtype ("": unknown), or None."""
        ...


@runtime_checkable
class Tabled(Protocol):
    """A model that knows how many rows its lookups have, before it has run."""

    def table_rows(self) -> Mapping[str, int]:
        """Rows by the path of what looks them up."""
        ...


@runtime_checkable
class Glancing(Protocol):
    """A model that can be run for less than what a trace costs, to see a few numbers alone."""

    def does_the_same(
        self, traced: Any, expected: Arithmetic, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether the model does the same arithmetic over inputs of another length, leaving it as it was.

        False also where that cannot be told: then a trace must say.
        """
        ...


@runtime_checkable
class Differentiable(Protocol):
    """A model whose pass can be differentiated, each role by itself."""

    def differentiate(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[Any, Wanted, Passed]:
        """One forward and one backward pass, leaving the model as it was: trace, what was asked of it, the answer.

        Raises:
            RefusedError: The model's own forward raised.
            InputError: The batch holds no targets, or the loss is none.
        """
        ...


@runtime_checkable
class Quantisable(Protocol):
    """A model whose table can be another one in one role alone."""

    def quantisable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> QuantisableTable:
        """The tables that the roles read, to be rounded in one role alone.

        Raises:
            RefusedError: The model's own forward raised.
            InputError: It returns no logits, or its roles cannot be told apart.
        """
        ...


@runtime_checkable
class Movable(Protocol):
    """A model whose table can be moved in one role alone."""

    def movable(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], request: Request
    ) -> tuple[MovableTable, tuple[str, ...]]:
        """The main table of a copy of the model, to be moved in one role alone; and notes.

        Raises:
            RefusedError: The model's own forward raised.
            InputError: As above; or no table could be moved so.
        """
        ...


class Guard(Protocol):
    """Watches ties of one model."""

    @property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """The names that are one parameter."""
        ...

    def check(self, model: Any = None) -> None:
        """Raise TieBroken where a tie is gone, in the model or in a copy of it."""
        ...

    def hook(self, *_: Any) -> None:
        """`check` for whatever calls hooks."""
        ...

    def start(self) -> None:
        """Watch from here on."""
        ...

    def stop(self) -> None:
        """Watch no more, and leave the model as it was."""
        ...

    def __enter__(self) -> "Guard": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Operator(Protocol):
    """Writes to one model and to what trains it. Each write tells the transaction how to undo it.

    A method validates everything, then writes.
    """

    @property
    def said(self) -> tuple[str, ...]:
        """What became of the optimizer's state."""
        ...

    def names(self) -> tuple[str, ...]:
        """Every path of every parameter."""
        ...

    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Paths that are one parameter, where it has several."""
        ...

    def one(self, names: Sequence[str]) -> bool:
        """Whether these paths are one parameter.

        Raises:
            TieError: One of them is computed each time.
            InputError: There is no such path.
        """
        ...

    def check_here(self, names: Sequence[str]) -> None:
        """Raise where one of these parameters was seen with values and holds none now.

        Raises:
            TieError: A wrapper fetches it for each pass.
        """
        ...

    def names_of(self, name: str) -> tuple[str, ...]:
        """Every path of the parameter at a path."""
        ...

    def like(self, name: str) -> tuple[str, ...]:
        """Paths of other parameters of the same shape."""
        ...

    def join(self, names: Sequence[str], on_conflict: OnConflict, undo: Transaction) -> tuple[str, ...]:
        """Make several parameters the first one; notes.

        Raises:
            TieError, ShapeError, InputError: They cannot be one.
        """
        ...

    def part(
        self,
        table: Sequence[str],
        readouts: Sequence[str],
        lookups: Sequence[str],
        named: str | None,
        undo: Transaction,
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Give the readout a parameter of its own; its names, those of the lookup, and notes.

        Raises:
            TieError: There is no place for it.
        """
        ...

    def guard(self, ties: Sequence[Sequence[str]], apart: Sequence[Sequence[str]]) -> "Guard":
        """What watches that these names stay one parameter, and those stay several; nothing is watched yet."""
        ...

    def resize(self, tables: Sequence[Table], plan: RowPlan, undo: Transaction) -> tuple[str, ...]:
        """Give tables, and the biases of their readouts, other rows; the names of the biases.

        Raises:
            TieError: One of them cannot take them.
        """
        ...

    def write(self, file: Path, apart: Collection[str] = ()) -> tuple[tuple[str, ...], ...]:
        """Write every tensor once, as a whole or not at all; the groups of names that were one."""
        ...

    def load(
        self, path: Path, declared: Sequence[Sequence[str]], policy: Mapping[str, Any], undo: Transaction
    ) -> Loaded:
        """Load a file, tied as the model is or as a policy says.

        Raises:
            TieError, ShapeError, InputError: It cannot be, or the policy is to refuse.
        """
        ...

    def within(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], vocab: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Inputs whose token ids a smaller vocabulary has too."""
        ...


@runtime_checkable
class Operable(Protocol):
    """A model whose tables can be changed while it lives."""

    def operator(self, optimizer: Any) -> Operator:
        """What writes to it, and to the optimizer (or several, or None) that trains it.

        Raises:
            InputError: The optimizer is none, or of another model.
        """
        ...
