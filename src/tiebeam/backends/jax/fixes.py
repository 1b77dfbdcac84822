"""What mends a JAX model, as findings print it.

Arrays do not change, and which leaf a role reads is in the model's code: there is little that a line of Python beside
the model could mend.
"""


class JaxFixes:
    """`core.findings.Fixes` for one model.

    Args:
        whole: The model holds its arrays; otherwise they are in `params`.
    """

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole

    def tie(self, owner: str, other: str) -> str:
        return ""

    def initialize(self) -> str:
        if self.whole:
            return "model, report = tiebeam.initialize_params(model, inputs)"
        return "params, report = tiebeam.initialize_params(model, inputs, params)"

    def scale_lookup(self, where: str, factor: float) -> str:
        return ""

    def train(self, name: str, on: bool) -> str:
        return ""
