"""Why a value is unknown: the notes of a table answer, and those that answered are not repeated."""

import re

from tiebeam.core.facts import Table
from tiebeam.reports.numbers import interval, number

_RECORDS = {
    "lookup_factor": "lookups",
    "readout_factor": "readouts",
    "hidden_rms": "readouts",
    "soft_cap": "readouts",
}
_READOUT = ("readout_factor", "hidden_rms")
_FOLLOWS = {
    "target_std": _READOUT,
    "lr_ratio": _READOUT,
    "logit_std": (*_READOUT, "std"),
    "own_logit": (*_READOUT, "std"),
    "initial_loss": (*_READOUT, "std"),
    "lookup_rms": ("lookup_factor", "std"),
}


class Reasons:
    """Shows values of one table, with the reason where one is unknown.

    A note answers for a field that it begins with ("hidden_rms: why", "hidden_rms is not known: why") or
    names; failing that, a note on a record of the role concerned does; failing that, what the value is
    computed from is unknown itself.
    """

    def __init__(self, table: Table, meta: bool) -> None:
        self._table, self._meta = table, meta
        self._used: set[str] = set()

    def show(self, field: str, value: float | None, bounds: tuple[float, float] | None = None) -> str:
        """The number, else its bounds, else "unknown" and why."""
        if value is not None:
            return number(value)
        if bounds is not None:
            return f"{interval(bounds)} (for kappa from 0 to 1)"
        reason = self._reason(field)
        return f"unknown ({reason})" if reason else "unknown"

    def left(self) -> list[str]:
        """Notes of the table and its records that no reason shown so far is or holds."""
        return [n for n in dict.fromkeys(self._notes()) if not any(n in used for used in self._used)]

    def _reason(self, field: str) -> str:
        words = field.replace("_", " ")
        naming = [n for n in self._notes() if n.startswith((f"{field}:", f"{words}:"))]
        if "_" in field:  # a single word, such as std, stands in notes about other things too
            naming = naming or [n for n in self._notes() if field in n or words in n]
        naming = naming or self._record_notes(_RECORDS.get(field, ""))
        if field == "state":
            naming = naming or list(self._table.notes)
        if naming:
            self._used.add(naming[0])
            return re.sub(rf"^({field}|{words})( is not known)?:? *", "", naming[0]).removesuffix(".")
        if field in ("std", "hidden_rms") and self._meta:
            return "no values on meta"
        needed = [f for f in self._needs(field) if getattr(self._table, f) is None]
        return f"it follows from the {needed[0].replace('_', ' ')}" if needed else ""

    def _needs(self, field: str) -> tuple[str, ...]:
        if field == "target_std" and not self._table.readouts:
            return ("lookup_factor",)
        return _FOLLOWS.get(field, ())

    def _notes(self) -> list[str]:
        return [*self._table.notes, *self._record_notes("lookups"), *self._record_notes("readouts")]

    def _record_notes(self, role: str) -> list[str]:
        if role == "lookups":
            return [n for r in self._table.lookups for n in r.notes]
        return [n for r in self._table.readouts for n in r.notes] if role else []
