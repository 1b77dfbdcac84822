"""All predictions for one table at once, from whichever facts are known."""

import math

from tiebeam.core.facts import Predicted
from tiebeam.core.initialising import moments
from tiebeam.errors import RangeError


def _usable(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def predict(
    *,
    vocab: int,
    width: int,
    std: float | None = None,
    lookup_factor: float | None = None,
    readout_factor: float | None = None,
    hidden_rms: float | None = None,
    kappa: float | None = None,
    pi: float | None = None,
    soft_cap: float | None = None,
) -> Predicted:
    """Every figure that the known facts allow; the others are None.

    Args:
        vocab: Number of tokens, 0 or more. Unit: tokens.
        width: Inner dimension of the readout. Unit: features.
        std: Std of the table's entries, or None. Unit: 1.
        lookup_factor: None where unknown or where the table is no lookup. Unit: 1.
        readout_factor: None where unknown or where the table is no readout. Unit: 1.
        hidden_rms: Root mean square of the hidden state, or None. Unit: 1.
        kappa: Cosine of stream and looked-up row as measured; 0 for a readout that is not tied; None
            where unknown. Unit: 1.
        pi: Share of targets that repeat the input token; None is taken as 0. Unit: 1.
        soft_cap: c of `c * tanh(z / c)`, or None. `logit_std` is the one before it. Unit: nats.

    Returns:
        With `kappa` known, `own_logit` and `initial_loss` are numbers and their ranges None; with `kappa`
        unknown the ranges hold the lowest and highest value for a `kappa` from 0 to 1 and the numbers are
        None. An own logit has the readout factor's sign. A fact that is not finite counts as unknown. An
        empty table (`vocab` or `width` 0) has `log_vocab` NaN and nothing else.

    Raises:
        RangeError: A known fact lies outside what the mathematics allows (a negative std, for one).

    Assumes: as the functions above.
    Source: the functions above.

    Example:
        >>> facts = dict(vocab=33527, width=1024, std=1 / 32, readout_factor=1.0, hidden_rms=1.0)
        >>> known = predict(**facts, kappa=0.9)
        >>> round(known.initial_loss, 1), known.initial_loss_range
        (28.8, None)
        >>> bounds = predict(**facts)
        >>> bounds.own_logit, bounds.own_logit_range
        (None, (0.0, 32.0))
    """
    if vocab == 0 or width == 0:
        return Predicted(math.nan)
    if vocab < 0 or width < 0:
        raise RangeError("a table has no negative size", got=f"({vocab}, {width})")
    log_vocab = math.log(vocab)
    std, lookup_factor = _usable(std), _usable(lookup_factor)
    readout_factor, hidden_rms, kappa = _usable(readout_factor), _usable(hidden_rms), _usable(kappa)
    rms = None if std is None or lookup_factor is None else moments.lookup_rms(lookup_factor, std)
    if std is None or readout_factor is None or hidden_rms is None:
        return Predicted(log_vocab, lookup_rms=rms)
    s = moments.logit_std(readout_factor, hidden_rms, std, width)
    normaliser = moments.phi(s, vocab) if soft_cap is None else moments.capped_phi(s, vocab, soft_cap)
    share = _usable(pi) or 0.0
    if not 0.0 <= share <= 1.0:
        raise RangeError("pi is no share", got=repr(pi), expected="0 to 1")
    sign = math.copysign(1.0, readout_factor)

    def own(cosine: float) -> float:
        logit = moments.own_logit(cosine, s, width)
        return logit if soft_cap is None else soft_cap * math.tanh(logit / soft_cap)

    if kappa is not None:
        # A measured cosine may leave [-1, 1] by a rounding error.
        seen = own(sign * (kappa if abs(kappa) > 1 + 1e-3 else max(-1.0, min(1.0, kappa))))
        return Predicted(log_vocab, s, rms, seen, moments.mean_loss(normaliser, seen, share))
    largest = own(sign)
    own_range = (min(0.0, largest), max(0.0, largest))
    loss_range = moments.loss_range(normaliser, largest, share)
    return Predicted(log_vocab, s, rms, own_logit_range=own_range, initial_loss_range=loss_range)
