"""What a table's std does at initialisation: logits, looked-up rows and the first loss, in closed form.

Everything follows from one product. A hidden state `h` of root mean square `hidden_rms`, independent of
a table whose entries are independent with mean 0 and variance `std**2`, gives logits
`readout_factor * (h . row)` of mean 0 and variance
`readout_factor**2 * std**2 * sum(h**2) = (readout_factor * std * hidden_rms)**2 * width`.
The other functions invert that, or feed it to the loss.

Numbers that the mathematics excludes raise `RangeError`. Zero is allowed where it means something (a
table of zeros has std 0 and uniform logits) and refused where it would be divided by.
"""

import math

import numpy as np

from tiebeam.errors import RangeError


def _finite(what: str, value: float) -> float:
    if not math.isfinite(value):
        raise RangeError(f"{what} is not finite", got=repr(value), expected="a finite number")
    return float(value)


def _positive(what: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise RangeError(f"{what} is out of range", got=repr(value), expected="a finite number above 0")
    return float(value)


def _at_least_zero(what: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise RangeError(f"{what} is out of range", got=repr(value), expected="a finite number, 0 or above")
    return float(value)


def _size(what: str, value: int) -> int:
    if not (math.isfinite(value) and value >= 1):
        raise RangeError(f"{what} is out of range", got=repr(value), expected="1 or more")
    return value


def _within(what: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise RangeError(f"{what} is out of range", got=repr(value), expected=f"from {low:g} to {high:g}")
    return float(value)


def _factor(what: str, value: float) -> float:
    """Size of a factor that is divided by."""
    if _finite(what, value) == 0:
        raise RangeError(
            f"{what} is zero",
            got=repr(value),
            expected="a finite number other than 0",
            hint="a role whose signal is multiplied by 0 has no std that could mend it",
        )
    return abs(float(value))


def logit_std(readout_factor: float, hidden_rms: float, std: float, width: int) -> float:
    """Std of one logit: `|readout_factor| * hidden_rms * std * sqrt(width)`.

    Args:
        readout_factor: Constant that multiplies the logits; its sign does not matter. Unit: 1.
        hidden_rms: Root mean square of the hidden state that the table is read with, 0 or above. Unit: 1.
        std: Std of the table's entries, 0 or above. Unit: 1.
        width: Inner dimension of the readout. Unit: features.

    Returns:
        Std over tokens of the vocabulary, before a soft cap. Unit: nats.

    Raises:
        RangeError: A number is not finite, `hidden_rms` or `std` is negative, or `width` is below 1.

    Assumes: entries independent of each other and of the hidden state.
    Source: variance of a sum of `width` independent products; Glorot and Bengio 2010, section 4.2.

    Example:
        >>> round(logit_std(readout_factor=1.0, hidden_rms=1.0, std=0.02, width=768), 3)
        0.554
    """
    size = abs(_finite("readout_factor", readout_factor)) * _at_least_zero("hidden_rms", hidden_rms)
    return size * _at_least_zero("std", std) * math.sqrt(_size("width", width))


def target_std_readout(readout_factor: float, hidden_rms: float, width: int) -> float:
    """Std of a table that gives logits of std 1: `1 / (|readout_factor| * hidden_rms * sqrt(width))`.

    For a tied table too: the lookup's own scale is then the business of `lookup_factor`.

    Args:
        readout_factor: Constant that multiplies the logits, not 0. Unit: 1.
        hidden_rms: Root mean square of the hidden state, above 0 and independent of the table. Unit: 1.
        width: Inner dimension of the readout. Unit: features.

    Returns:
        The std to draw entries with. Unit: 1.

    Raises:
        RangeError: A number is not finite, the factor is 0, `hidden_rms` is not positive, or `width` < 1.

    Assumes: as `logit_std`.
    Source: `logit_std` solved for std; Vaswani et al. 2017 (arXiv 1706.03762), section 3.4, multiplies
    the lookup by `sqrt(width)` for the same reason.

    Example:
        >>> target_std_readout(readout_factor=1.0, hidden_rms=1.0, width=1024)
        0.03125
        >>> target_std_readout(readout_factor=-1 / 32, hidden_rms=1.0, width=1024)
        1.0
    """
    return lr_ratio(readout_factor, hidden_rms) / math.sqrt(_size("width", width))


def target_std_lookup(lookup_factor: float) -> float:
    """Std of a table read as lookup alone whose rows arrive with root mean square 1: `1 / |lookup_factor|`.

    Args:
        lookup_factor: Constant that multiplies looked-up rows, not 0. Unit: 1.

    Returns:
        The std to draw entries with. Unit: 1.

    Raises:
        RangeError: The factor is 0 or not finite.

    Assumes: nothing sums over the table on the way in, so a row keeps the std of its entries.
    Source: `lookup_rms` solved for std.

    Example:
        >>> target_std_lookup(lookup_factor=12.0) == 1 / 12
        True
    """
    return 1.0 / _factor("lookup_factor", lookup_factor)


def lr_ratio(readout_factor: float, hidden_rms: float) -> float:
    """The table's learning-rate ratio: c of `table = c * U`, `c = 1 / (|readout_factor| * hidden_rms)`.

    U is the table of a model without factors, whose target std is `1/sqrt(width)`, so
    `c = target_std * sqrt(width)`. Training the table as U would have trained needs `c` times the rate
    under Adam and its kind, `c**2` under SGD. A table that is read as lookup alone has ratio 1.

    Args:
        readout_factor: Constant that multiplies the logits, not 0. Unit: 1.
        hidden_rms: Root mean square of the hidden state, above 0. Unit: 1.

    Returns:
        c, whatever the table's present std. Unit: 1.

    Raises:
        RangeError: A number is not finite, the factor is 0, or `hidden_rms` is not positive.

    Assumes: as `logit_std`.
    Source: chain rule on `loss(c * U)`; Yang et al. 2022 (arXiv 2203.03466), lemma J.1.

    Example:
        >>> lr_ratio(readout_factor=1 / 32, hidden_rms=1.0)
        32.0
    """
    return 1.0 / (_factor("readout_factor", readout_factor) * _positive("hidden_rms", hidden_rms))


def lookup_rms(lookup_factor: float, std: float) -> float:
    """Root mean square of a looked-up row after its factor: `|lookup_factor| * std`.

    Args:
        lookup_factor: Constant that multiplies looked-up rows. Unit: 1.
        std: Std of the table's entries, 0 or above. Unit: 1.

    Returns:
        Root mean square over the row. Unit: 1.

    Raises:
        RangeError: A number is not finite, or `std` is negative.

    Assumes: entries of mean 0.
    Source: definition.

    Example:
        >>> lookup_rms(lookup_factor=32.0, std=1 / 32)
        1.0
    """
    return abs(_finite("lookup_factor", lookup_factor)) * _at_least_zero("std", std)


def own_logit(kappa: float, s: float, width: int) -> float:
    """Mean logit of the token just read: `kappa * s * sqrt(width)`.

    The hidden state has norm `hidden_rms * sqrt(width)`, the row `std * sqrt(width)`; their product is the
    product of the norms times the cosine, that is `kappa * hidden_rms * std * width`, and the readout
    factor makes `kappa * s * sqrt(width)` of it.

    Args:
        kappa: Cosine between the stream entering the readout and the looked-up row, -1 to 1 (negative
            also where the readout factor is). Unit: 1.
        s: Std of one logit, 0 or above (see `logit_std`). Unit: nats.
        width: Inner dimension of the readout. Unit: features.

    Returns:
        The mean over positions. Unit: nats.

    Raises:
        RangeError: `kappa` leaves its bounds, `s` is negative or not finite, or `width` is below 1.

    Assumes: a tied table; rows long enough that their norms hardly differ (by `1/sqrt(2 * width)`).
    Source: definition of the cosine.

    Example:
        >>> round(own_logit(kappa=0.9, s=1.0, width=1024), 3)
        28.8
    """
    scale = _at_least_zero("s", s) * math.sqrt(_size("width", width))
    return _within("kappa", kappa, -1.0, 1.0) * scale


def phi(s: float, vocab: int) -> float:
    """Expected log of the sum of `exp` over `vocab` independent normal logits of mean 0 and std `s`.

    `ln V + s**2 / 2` while many tokens share the sum; beyond `s = sqrt(2 ln V)` a few largest logits rule
    it and it grows as `s * sqrt(2 ln V)`. Value and slope agree where the two meet.

    Args:
        s: Std of one logit, 0 or above. Unit: nats.
        vocab: Number of tokens. Unit: tokens.

    Returns:
        The expectation to leading order in `ln V`; beyond the meeting point it lies up to about 12 % too
        high for vocabularies of some ten thousand tokens. Unit: nats.

    Raises:
        RangeError: `s` is negative or not finite, or `vocab` is below 1.

    Assumes: independent normal logits.
    Source: the random energy model, Derrida 1981 (Phys. Rev. B 24, 2613), its two phases.

    Example:
        >>> round(phi(s=0.0, vocab=50257), 3)
        10.825
    """
    log_vocab = math.log(_size("vocab", vocab))
    meeting = math.sqrt(2 * log_vocab)
    if _at_least_zero("s", s) > meeting:
        return s * meeting
    return log_vocab + s * s / 2


def capped_phi(s: float, vocab: int, soft_cap: float) -> float:
    """`phi` of logits `c * tanh(z / c)`, by numerical integration over a normal `z` of std `s`.

    Capped logits are bounded, so every token counts towards the sum and its mean is what it comes to.

    Args:
        s: Std of one logit before the cap, 0 or above. Unit: nats.
        vocab: Number of tokens. Unit: tokens.
        soft_cap: `c`, above 0. Unit: nats.

    Example:
        >>> round(capped_phi(s=1.0, vocab=33527, soft_cap=1e6), 3), round(phi(s=1.0, vocab=33527), 3)
        (10.92, 10.92)
        >>> capped_phi(s=100.0, vocab=512, soft_cap=5.0) < math.log(512) + 5
        True
    """
    z = np.linspace(-8.0, 8.0, 4001)
    weight = np.exp(-z * z / 2)
    c = _positive("soft_cap", soft_cap)
    logits = c * np.tanh(_at_least_zero("s", s) * z / c)
    peak = float(logits.max())
    mean = float(np.sum(weight * np.exp(logits - peak)) / np.sum(weight))
    return math.log(_size("vocab", vocab)) + peak + math.log(mean)


def _logaddexp(a: float, b: float) -> float:
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def mean_loss(normaliser: float, own: float, pi: float) -> float:
    """Cross-entropy from the log of the sum over all other tokens, and the own token's logit."""
    return _logaddexp(normaliser, own) - pi * own


def initial_loss(s: float, vocab: int, width: int, kappa: float, pi: float) -> float:
    """Expected first loss: `logaddexp(phi, own) - pi * own` with `own = kappa * s * sqrt(width)`.

    The sum of `exp` consists of the other tokens' share, `phi`, and of the token just read. A target that
    repeats that token (a share `pi` of them) scores `own` on average, any other 0.

    Args:
        s: Std of one logit, 0 or above. Unit: nats.
        vocab: Number of tokens. Unit: tokens.
        width: Inner dimension of the readout. Unit: features.
        kappa: Cosine of stream and looked-up row, -1 to 1; 0 for a table that is not tied. Unit: 1.
        pi: Share of targets that repeat the input token, 0 to 1. Unit: 1.

    Returns:
        Cross-entropy, averaged over positions. Unit: nats.

    Raises:
        RangeError: A number leaves its bounds.

    Assumes: as `phi` and `own_logit`; no soft cap; a vocabulary so large that the token just read, which
    `phi` counts too, weighs nothing there (at most `1/vocab` nats).
    Source: `phi` and `own_logit`; golden rows `own-token-*`.

    Example:
        >>> round(initial_loss(s=1.0, vocab=33527, width=1024, kappa=0.9, pi=0.0125), 1)
        28.4
    """
    return mean_loss(phi(s, vocab), own_logit(kappa, s, width), _within("pi", pi, 0.0, 1.0))


def loss_range(normaliser: float, own: float, pi: float) -> tuple[float, float]:
    """Bounds of the loss while the own logit runs from 0 to `own`.

    The loss is convex in the own logit, so its largest value is at an end; its smallest is inside where
    the softmax gives the own token exactly the share `pi`.
    """
    ends = (mean_loss(normaliser, 0.0, pi), mean_loss(normaliser, own, pi))
    low = min(ends)
    if 0 < pi < 1:
        best = normaliser + math.log(pi / (1 - pi))
        if min(0.0, own) < best < max(0.0, own):
            low = mean_loss(normaliser, best, pi)
    return low, max(ends)
