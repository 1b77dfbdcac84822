"""Right tokens: which one each row of the logits should have said."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tiebeam.core.measuring.passes import Request, Wanted
from tiebeam.errors import InputError
from tiebeam.ir import Graph

IGNORED = -100
"""A position without a target, as most training loops write it."""

Ints = npt.NDArray[np.int64]


def targets_for(graph: Graph, asked: Wanted, request: Request, ids: npt.NDArray[Any] | None) -> tuple[int, Ints, str]:
    """Right tokens for the logits that a pass returned; see `targets_of`.

    Args:
        ids: The tokens that belong to the rows of the logits, or None.

    Returns:
        Which of the pass' results the logits are; their targets, int64, one for each row; and where those came from.

    Raises:
        InputError: There are no logits, or no targets.
    """
    if asked.logits is None:
        raise InputError(
            "no loss can be taken",
            got="a model that returns neither a loss nor logits over its vocabulary",
            hint="pass loss=lambda output, batch: ...",
        )
    *rows, vocab = graph.values[asked.logits].shape
    targets, said = targets_of(ids, request.labels, request.mask, tuple(rows), vocab)
    return graph.outputs.index(asked.logits), targets.reshape(-1), said


def targets_of(
    ids: npt.NDArray[Any] | None,
    labels: npt.NDArray[Any] | None,
    mask: npt.NDArray[Any] | None,
    rows: tuple[int, ...],
    vocab: int,
) -> tuple[Ints, str]:
    """Right tokens for every row of the logits.

    Args:
        ids: What was looked up, shaped like `rows`; None where it is not known.
        labels: As the batch holds them, or None: next tokens. Labels that repeat the ids are moved by one, as
            language models that take labels do themselves; all others say what each position should say.
        mask: False or 0 at positions that count for nothing, shaped like `rows`; or None.
        rows: Shape of the logits without their last axis.
        vocab: Its size: tokens are 0 to `vocab - 1`.

    Returns:
        int64, shaped like `rows`, `IGNORED` where there is no target; and where they came from.

    Raises:
        InputError: No position has a target, one is no token, or shapes do not fit.

    Example:
        >>> targets_of(np.array([[5, 6, 7]]), None, None, (1, 3), 9)
        (array([[   6,    7, -100]]), 'next tokens')
    """
    if labels is None:
        if ids is None:
            raise InputError(
                "the batch holds no targets",
                got="no labels, and logits whose rows are no positions of the tokens that were looked up",
                expected="labels, a loss that the model returns, or a token after each token",
                hint='put "labels" into the batch, or pass loss=lambda output, batch: ...',
            )
        targets, said = _moved(ids), "next tokens"
    else:
        if labels.shape != rows or not np.issubdtype(labels.dtype, np.integer):
            raise InputError(
                "labels do not fit the logits",
                got=f"{labels.dtype} {labels.shape}",
                expected=f"integers of shape {rows}",
                hint="pass loss=lambda output, batch: ...",
            )
        targets, said = labels.astype(np.int64), "labels"
        counted = targets != IGNORED
        if ids is not None and counted.any() and np.array_equal(targets[counted], ids[counted]):
            targets, said = _moved(targets), "labels, moved by one"
    if mask is not None and mask.shape == rows:
        targets = np.where(_targets_seen(mask.astype(bool), moved=said != "labels"), targets, IGNORED)
    if not (targets != IGNORED).any():
        raise InputError(
            "the batch holds no targets",
            got=f"{said} of shape {rows}, none of which counts",
            expected="at least one position with a right token",
            hint="give at least two tokens a sequence, or labels that are not all ignored",
        )
    strange = np.unique(targets[(targets != IGNORED) & ((targets < 0) | (targets >= vocab))])
    if strange.size:  # a framework may raise, or take another token in silence
        raise InputError(
            "the batch holds targets that are no tokens",
            got=f"{said} of {', '.join(map(str, strange[:3].tolist()))}",
            expected=f"0 to {vocab - 1}, as the logits have, or {IGNORED} where nothing counts",
            hint='mark padding in "attention_mask", or pass loss=lambda output, batch: ...',
        )
    return targets, said


def _moved(ids: npt.NDArray[Any]) -> Ints:
    targets = np.full(ids.shape, IGNORED, dtype=np.int64)
    targets[..., :-1] = ids[..., 1:]
    return targets


def _targets_seen(mask: npt.NDArray[np.bool_], *, moved: bool) -> npt.NDArray[np.bool_]:
    """Where the target itself is no padding."""
    if not moved:
        return mask
    seen = np.zeros_like(mask)
    seen[..., :-1] = mask[..., 1:]
    return seen & mask
