"""What mends a JAX model, as findings print it.

Which leaf a role reads is in the model's code: there is little that a line of Python beside it could mend.
"""

from tiebeam.backends.jax.kinds.held import Held


class JaxFixes:
    """`core.findings.Fixes` for one model.

    Args:
        held: The model.
        whole: It holds its arrays; otherwise they are in `params`.
    """

    def __init__(self, held: Held, *, whole: bool) -> None:
        self.held, self.whole = held, whole

    def tie(self, owner: str, other: str) -> str:
        return self.held.tie(owner, other)

    def initialize(self) -> str:
        if self.whole:
            return "model, report = tiebeam.initialize_params(model, inputs)"
        return "params, report = tiebeam.initialize_params(model, inputs, params)"

    def scale_lookup(self, where: str, factor: float) -> str:
        return ""

    def train(self, name: str, on: bool) -> str:
        return ""
