"""What every backend promises, as sentences that pytest checks."""

from tiebeam.testing.contract.base import Refusal as Refusal
from tiebeam.testing.contract.refusing import Refusing
from tiebeam.testing.contract.seeing import Seeing
from tiebeam.testing.contract.writing import Writing


class BackendContract(Seeing, Writing, Refusing):
    """The tests that a backend passes. Collected through subclasses alone.

    A subclass names a builder: an object that makes a model of the framework from a `Blueprint` and NumPy weights
    (see `Builder` and the zoo's, such as `tiebeam.zoo.torch.blueprint.TorchBuilder`). What is true of the models is
    worked out in NumPy; tables that are drawn are held against `tiebeam.core.initialising.draws` and one digest for
    all frameworks, so that no process needs two of them.

    Attributes:
        builder: Builds the models.
        cannot: What the framework cannot do: "abstract" (shapes without values), "bfloat16". Each with its reason
            and the error that is raised instead, which the contract then asks for.

    Example:
        A whole test file:

        >>> from tiebeam.testing import BackendContract
        >>> from tiebeam.zoo.torch.blueprint import TorchBuilder
        >>> class TestTorch(BackendContract):
        ...     builder = TorchBuilder()
    """
