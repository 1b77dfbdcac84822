"""What a tied embedding computes, in NumPy and float64: every framework is held against this, none against another."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

TOLERANCE = 1e-5
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 3, 5, 0]], dtype=np.int32)


@dataclass(frozen=True)
class Case:
    """Arguments of a block, under the names that all frameworks share."""

    vocab: int = 11
    width: int = 6
    table_width: int | None = None
    lookup_factor: float | None = None
    readout_factor: float = 1.0
    soft_cap: float | None = None
    padding_idx: int | None = None
    bias: bool = False

    def arguments(self, bias: str) -> dict[str, Any]:
        """As keywords; `bias` is what the framework calls that switch."""
        given = asdict(self)
        return {bias: given.pop("bias"), **given}

    @property
    def inner(self) -> int:
        return self.width if self.table_width is None else self.table_width

    @property
    def factor(self) -> float:
        return np.sqrt(self.inner) if self.lookup_factor is None else self.lookup_factor


CASES = {
    "default": Case(),
    "factors": Case(lookup_factor=-3.0, readout_factor=0.25),
    "capped": Case(soft_cap=1.5, bias=True),
    "padded": Case(padding_idx=3),
    "narrow": Case(table_width=4),
    "wide": Case(table_width=9),
    "all": Case(table_width=4, lookup_factor=2.5, readout_factor=-0.5, soft_cap=2.0, padding_idx=5, bias=True),
}

Weights = dict[str, np.ndarray]


def weights(case: Case) -> Weights:
    """Weights of a block, by their common names; the padding row is no zero, as after training."""
    rng = np.random.default_rng(7)
    shapes = {"table": (case.vocab, case.inner)}
    shapes |= {"bias": (case.vocab,)} if case.bias else {}
    if case.table_width is not None:
        shapes |= {"project_in": (case.inner, case.width), "project_out": (case.width, case.inner)}
    return {name: rng.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def mixing(case: Case) -> np.ndarray:
    """A body for the model: hidden = rows @ mixing."""
    return np.random.default_rng(8).normal(0.0, 0.5, (case.width, case.width)).astype(np.float32)


def probe(case: Case) -> np.ndarray:
    """The loss is the sum of the logits times this."""
    return np.random.default_rng(9).normal(0.0, 1.0, (*IDS.shape, case.vocab)).astype(np.float32)


def look_up(case: Case, w: Weights, ids: np.ndarray) -> np.ndarray:
    """(...) -> (..., width)."""
    rows = w["table"][ids].astype(np.float64) * case.factor
    rows = np.where((ids == case.padding_idx)[..., None], 0.0, rows) if case.padding_idx is not None else rows
    return rows @ w["project_in"] if "project_in" in w else rows


def read_out(case: Case, w: Weights, hidden: np.ndarray) -> np.ndarray:
    """(..., width) -> (..., vocab)."""
    hidden = hidden @ w["project_out"] if "project_out" in w else hidden
    logits = case.readout_factor * (hidden @ w["table"].T.astype(np.float64)) + w.get("bias", 0.0)
    return logits if case.soft_cap is None else case.soft_cap * np.tanh(logits / case.soft_cap)


def logits(case: Case, w: Weights) -> np.ndarray:
    """Of `IDS`, through the body."""
    return read_out(case, w, look_up(case, w, IDS) @ mixing(case))


def gradients(case: Case, w: Weights) -> dict[str, np.ndarray]:
    """Of the loss, for every weight; the table's is the sum of "lookup" and "readout", which are given too."""
    w = {name: x.astype(np.float64) for name, x in w.items()}
    hidden = look_up(case, w, IDS) @ mixing(case)
    read = hidden @ w["project_out"] if "project_out" in w else hidden
    slope = 1.0 if case.soft_cap is None else 1.0 - (logits(case, w) / case.soft_cap) ** 2
    d_logits = (probe(case) * slope).reshape(-1, case.vocab)
    read, hidden = read.reshape(-1, case.inner), hidden.reshape(-1, case.width)
    out = {"readout": case.readout_factor * d_logits.T @ read}
    d_hidden = case.readout_factor * d_logits @ w["table"]
    if "bias" in w:
        out["bias"] = d_logits.sum(0)
    if "project_out" in w:
        out["project_out"] = hidden.T @ d_hidden
        d_hidden = d_hidden @ w["project_out"].T
    d_rows = d_hidden @ mixing(case).T
    kept = (IDS.ravel() != case.padding_idx)[:, None] if case.padding_idx is not None else 1.0
    if "project_in" in w:
        out["project_in"] = (kept * w["table"][IDS.ravel()] * case.factor).T @ d_rows
        d_rows = d_rows @ w["project_in"].T
    out["lookup"] = np.zeros_like(w["table"])
    np.add.at(out["lookup"], IDS.ravel(), case.factor * kept * d_rows)
    out["table"] = out["lookup"] + out["readout"]
    return out


@dataclass(frozen=True)
class Exercise:
    """Known weights whose every score is easy to check: a direct lookup and readout, no body, no factor."""

    table = np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    ids = np.array([0, 2, 0], dtype=np.int32)
    scores = np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 1.0], [1.0, 2.0, 0.0]], dtype=np.float32)


EXERCISE = Exercise()
EXERCISE_CASE = Case(vocab=3, width=2, lookup_factor=1.0)
