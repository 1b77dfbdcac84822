"""Figures of an advice by themselves, for the golden table."""

from typing import Any

import tiebeam


def tied(**sizes: Any) -> int | None:
    return tiebeam.advise(**sizes).tied


def untied(**sizes: Any) -> int | None:
    return tiebeam.advise(**sizes).untied


def saved(**sizes: Any) -> int:
    return tiebeam.advise(**sizes).saved


def share(**sizes: Any) -> float | None:
    return tiebeam.advise(**sizes).share


def saved_mebibytes(**sizes: Any) -> float:
    return tiebeam.advise(**sizes).bytes["float32"].saved / 2**20
