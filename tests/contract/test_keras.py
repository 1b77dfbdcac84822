"""The contract, for Keras models on the framework that this process has."""

from typing import ClassVar

import tiebeam
from tiebeam.testing import BackendContract, Refusal
from tiebeam.testing.contract.base import Ability
from tiebeam.zoo.keras.blueprint import KerasBuilder


class TestKeras(BackendContract):
    builder = KerasBuilder()
    cannot: ClassVar[dict[Ability, Refusal]] = {
        "abstract": Refusal("variables have values as soon as they are built", tiebeam.InputError, "is not built")
    }
