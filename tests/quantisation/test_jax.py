"""Each role of a JAX program rounded by itself, held against the same program with two tables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.measure.jax_models import IDS, PARAMS, READS, Read, plain, tied

import tiebeam
from tiebeam.core.measuring.quantise import quantised
from tiebeam.core.measuring.sensitivity import compare
from tiebeam.errors import InputError

SLOW = ("over_devices", "read_in_a_scan", "vocabulary_in_pieces", "branches", "one_sum", "twice")
MARKED = [pytest.param(r, marks=[pytest.mark.slow] if r.__name__ in SLOW else [], id=r.__name__) for r in READS]


@pytest.mark.parametrize("read", MARKED)
def test_a_role_rounded_alone_gives_the_logits_of_a_program_with_two_tables(read: Read) -> None:
    found = tiebeam.sensitivity(tied(read), IDS, params=PARAMS, bits=(4,), group=None)
    assert found.tied
    table, mid = PARAMS["table"], PARAMS["mid"]
    rounded = jnp.asarray(quantised(np.asarray(table), 4))
    base = np.asarray(read(IDS, table, table, mid), np.float32).reshape(12, -1)
    ends = {"lookup": (rounded, table), "readout": (table, rounded), "both": (rounded, rounded)}
    close = 0.05 if read.__name__ == "one_cast" else 2e-3  # bfloat16 rounds once more
    for role, (a, b) in ends.items():
        error, kl, top1 = compare(base, np.asarray(read(IDS, a, b, mid), np.float32).reshape(12, -1))
        effect: Any = found.effect(role, 4)  # type: ignore[arg-type]
        assert effect.logit_error == pytest.approx(error, rel=close)
        assert effect.kl == pytest.approx(kl, rel=2 * close)
        assert effect.top1 == top1 or read.__name__ == "one_cast"


def test_two_tables_are_rounded_each_by_itself() -> None:
    params = {**PARAMS, "out": PARAMS["table"][::-1]}

    def model(p: Any, ids: Any) -> Any:
        return plain(ids, p["table"], p["out"], p["mid"])

    found = tiebeam.sensitivity(model, IDS, params=params, bits=(8, 4))
    assert not found.tied
    assert found.advice in ("untied", "as it is")
    for role in ("lookup", "readout"):
        assert found.effect(role, 4, 32).kl > found.effect(role, 8, 32).kl > 0


def test_shapes_and_programs_without_logits_are_refused() -> None:
    model = tied(plain)
    with pytest.raises(InputError, match="without values"):
        tiebeam.sensitivity(model, IDS, params=jax.eval_shape(lambda: PARAMS))
    with pytest.raises(InputError, match="nothing can be compared"):
        tiebeam.sensitivity(lambda p, ids: model(p, ids).sum(), IDS, params=PARAMS)
