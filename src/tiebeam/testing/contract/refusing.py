"""What a backend refuses, and how it says so."""

from typing import Any

import numpy as np
import pytest

import tiebeam
from tiebeam.testing.contract.base import Base, said
from tiebeam.testing.contract.models import PLAIN


class Refusing(Base):
    """Errors that say what is wrong and chain the framework's own."""

    def test_inputs_that_the_model_refuses_chain_its_own_error(self) -> None:
        with pytest.raises(tiebeam.InputError, match="does not run on these inputs") as caught:
            self.look(self.build(PLAIN), np.zeros((2, 3, 4, 5, 6), np.float32))
        assert isinstance(caught.value.__cause__, Exception)
        assert type(caught.value.__cause__).__name__ in said(caught.value)

    def test_no_arguments_that_the_model_does_not_take(self) -> None:
        with pytest.raises(tiebeam.InputError) as caught:
            self.look(self.build(PLAIN), (PLAIN.inputs(), PLAIN.inputs(), PLAIN.inputs(), PLAIN.inputs()))
        assert caught.value.__cause__ is not None

    def test_params_go_where_a_model_holds_none_and_nowhere_else(self) -> None:
        built = self.build(PLAIN)
        if built.params is None:
            with pytest.raises(tiebeam.TiebeamError, match="holds its own") as caught:
                tiebeam.inspect(built.model, PLAIN.inputs(), params={"table": PLAIN.weights()["table"]})
        else:
            with pytest.raises((tiebeam.BackendError, tiebeam.InputError)) as caught:
                tiebeam.inspect(built.model, PLAIN.inputs())
        assert "params" in said(caught.value)

    def test_the_call_that_does_not_serve_names_the_one_that_does(self) -> None:
        built = self.build(PLAIN)
        before = built.arrays(built.holder)
        wrong: Any = tiebeam.initialize if self.functional(built) else tiebeam.initialize_params
        right = "initialize_params" if self.functional(built) else r"tiebeam\.initialize\("
        with pytest.raises(tiebeam.InputError, match=right) as caught:
            wrong(built.model, PLAIN.inputs())
        said(caught.value)
        arrays = built.arrays(built.holder)
        assert all(np.array_equal(arrays[name], before[name]) for name in before)

    def test_a_class_in_place_of_a_model_is_refused(self) -> None:
        with pytest.raises(tiebeam.BackendError, match="a class") as caught:
            tiebeam.inspect(type(self.build(PLAIN).model), PLAIN.inputs())
        said(caught.value)
