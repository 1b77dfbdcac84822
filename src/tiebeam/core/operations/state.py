"""How what an optimizer remembers of a parameter is carried: joined with another's, copied, or given other rows."""

from typing import Literal

from tiebeam.errors import TieError

Join = Literal["sum", "max"]

JOINS: dict[str, Join] = {
    # Means of gradients: the gradient of one table in two roles is the sum of both.
    **dict.fromkeys("exp_avg momentum_buffer grad_avg mu trace".split(), "sum"),
    # Of their squares: the sum, as for gradients that do not go together; between half and twice what it would be.
    **dict.fromkeys(
        "exp_avg_sq max_exp_avg_sq square_avg sum nu exp_avg_sq_row exp_avg_sq_col row_var col_var variance".split(),
        "sum",
    ),
    **dict.fromkeys("exp_inf step count".split(), "max"),
}
"""Entry of a state -> how two of them become one. What has no rule stays as the owner has it."""

_SQUARES = frozenset(
    """exp_avg_sq max_exp_avg_sq square_avg sum nu exp_inf exp_avg_sq_row row_var variance v v_row v_col
    sum_of_squares""".split()
)


def of_new_rows(entry: str) -> Literal["zero", "mean"]:
    """What an entry starts with for a row that is new.

    A mean of gradients starts at zero. One of squares at the mean of the other rows: from zero, the bias correction
    of a long run would make the row's first step several times too long.

    Example:
        >>> of_new_rows("exp_avg"), of_new_rows("exp_avg_sq")
        ('zero', 'mean')
    """
    return "mean" if entry in _SQUARES else "zero"


def rows_axis(entry: str, shape: tuple[int, ...], table: tuple[int, ...], vocab_axis: int) -> int | None:
    """Which axis of an entry counts the table's rows, or None where none does.

    Args:
        entry: Its name.
        shape: Of the entry.
        table: Of the table, before.
        vocab_axis: Of the table.

    Raises:
        TieError: The entry is of a shape that does not tell.

    Example:
        >>> rows_axis("exp_avg", (9, 4), (9, 4), 0), rows_axis("row_var", (9, 1), (9, 4), 0)
        (0, 0)
        >>> rows_axis("exp_avg_sq_col", (4,), (9, 4), 0), rows_axis("step", (), (9, 4), 0)
        (None, None)
    """
    if len(shape) == len(table):
        if all(n in (1, m) for n, m in zip(shape, table, strict=True)):
            return vocab_axis if shape[vocab_axis] == table[vocab_axis] else None
    elif len(shape) <= 1:
        if len(shape) == 0 or shape == (1,):
            return None
        rows, columns = table[vocab_axis], table[1 - vocab_axis] if len(table) == 2 else 0
        if rows != columns and shape[0] in (rows, columns):
            return 0 if shape[0] == rows else None
        if shape[0] == rows and entry.endswith(("_row", "_col")):
            # Factored moments drop the last axis in "row", the one before it in "col".
            return 0 if entry.endswith("_row") == (vocab_axis == 0) else None
    raise TieError(
        f"the optimizer's state {entry!r} does not say which of its entries belong to which row",
        got=f"shape {shape} beside a table of {table}",
        expected="one number for each entry, row or column of the table",
        hint="operate without the optimizer and build it anew: its state starts over",
    )
