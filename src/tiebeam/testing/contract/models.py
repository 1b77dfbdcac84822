"""The models that a backend is judged by, as data."""

from tiebeam.zoo.blueprint import Blueprint, Step

PLAIN = Blueprint()
SCALED = Blueprint(lookup=(Step(7.0),), after=(Step(7.0, "divide"),))
UNTIED = Blueprint(tied=False, lookup=(Step(3.0),), after=(Step(-0.25),))
FREE = Blueprint(norm="none", before=(Step(0.5),))  # no normalisation: the hidden state follows the table
CLASSIFIER = Blueprint(kind="classifier")

#: Everything that multiplies, in the forms that programs use.
TIED: dict[str, Blueprint] = {
    "plain": PLAIN,
    "lookup and readout": SCALED,
    "a divisor and a sign": Blueprint(after=(Step(2.0, "divide"), Step(form="negate"))),
    "an array": Blueprint(lookup=(Step(1.7, "array"),), before=(Step(0.3, "array"),)),
    "a chain": Blueprint(
        lookup=(Step(3.0), Step(4.0, "divide"), Step(form="double")),
        before=(Step(0.5), Step(form="negate")),
        after=(Step(form="double"), Step(-8.0, "divide")),
    ),
    "a sum with itself": Blueprint(norm="rms", before=(Step(form="double"),)),
    "a soft cap": Blueprint(before=(Step(-0.5),), after=(Step(3.0),), soft_cap=15.0),
    "a bias": Blueprint(bias=True, after=(Step(0.5),)),
    "a gain": Blueprint(gain=2.5),
    "RMS norm": Blueprint(norm="rms", lookup=(Step(5.0),)),
    "no norm": FREE,
    "positions": Blueprint(positions=32, lookup=(Step(6.0),)),
    "normalised rows": Blueprint(norm_rows=True),
    "a padding row": Blueprint(padding=0),
}

GOLDEN = Blueprint(lookup=(Step(4.0),), after=(Step(0.5),))
GOLDEN_SEED = 2026
#: SHA-256 of the table that `GOLDEN` gets from `GOLDEN_SEED`, as little-endian float32: one in every framework.
#: A table in bfloat16 holds the same draws rounded once.
GOLDEN_DIGESTS = {
    "float32": "92791be7364f8944dbbe4f7b62cff6dae6910bd39b35f38c05f174dbae2d665c",
    "bfloat16": "0ef81d6ae5958f849c84718cee2476be9ba5d16e7c49d6aa3e576c6793d986c5",
}
