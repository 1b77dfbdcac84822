import math
import re

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from tiebeam.reports.numbers import count, interval, known, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.02, "0.02"),
        (0.0360844, "0.03608"),
        (27.712813, "27.71"),
        (-0.5, "-0.5"),
        (-0.0, "0"),
        (1.0, "1"),
        (10.0, "10"),
        (910.04, "910"),
        (9999.6, "10,000"),
        (123456.0, "123,500"),
        (999999.0, "1e6"),
        (2.5e6, "2.5e6"),
        (0.000123456, "0.0001235"),
        (1.5e-8, "1.5e-8"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_has_four_significant_digits(value, text):
    assert number(value) == text


@given(st.floats(-1e300, 1e300))
@example(5e-324)
def test_a_number_reads_back_within_its_four_digits_and_is_never_minus_zero(value):
    text = number(value)
    assert math.isclose(float(text.replace(",", "")), value, rel_tol=5.01e-4, abs_tol=0)
    assert text not in ("-0", "-0.0")
    digits = re.sub(r"e.*|[-,.]", "", text).strip("0")
    assert len(digits) <= 4


def test_an_unknown_number_says_so_and_bounds_stand_in_order():
    assert known(None) == "unknown"
    assert known(0.125) == "0.125"
    assert interval((0.0, 27.7128)) == "0 to 27.71"


def test_a_count_keeps_all_its_digits():
    assert count(124439808) == "124,439,808"
