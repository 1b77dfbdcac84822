"""The reference itself, against central differences and the arithmetic it stands on."""

import numpy as np
import pytest
from tests.blocks import reference


@pytest.mark.parametrize("name", reference.CASES)
def test_every_gradient_of_the_reference_is_the_slope_of_its_loss(name):
    case = reference.CASES[name]
    w = {key: x.astype(np.float64) for key, x in reference.weights(case).items()}
    found = reference.gradients(case, w)
    for key, x in w.items():
        slopes = np.zeros_like(x)
        for index in np.ndindex(x.shape):
            there = []
            for step in (1e-5, -1e-5):
                moved = x.copy()
                moved[index] += step
                there.append(float((reference.logits(case, {**w, key: moved}) * reference.probe(case)).sum()))
            slopes[index] = (there[0] - there[1]) / 2e-5
        np.testing.assert_allclose(found[key], slopes, rtol=1e-6, atol=1e-7, err_msg=key)


def test_the_cases_tell_the_two_roles_apart():
    for case in reference.CASES.values():
        found = reference.gradients(case, reference.weights(case))
        assert min(np.abs(found[role]).max() for role in ("lookup", "readout")) > 0.1


def test_the_exercise_holds_its_three_claims():
    scores = reference.read_out(
        reference.EXERCISE_CASE, {"table": reference.EXERCISE.table}, reference.EXERCISE.table[reference.EXERCISE.ids]
    )
    np.testing.assert_array_equal(scores, reference.EXERCISE.scores)
    assert scores[0, 1] > scores[0, 0]  # its own token need not score highest
    np.testing.assert_array_equal(scores[0], scores[2])
