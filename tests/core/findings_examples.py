"""For each finding of core what makes it speak, and what is close to that and must not."""

import math
from dataclasses import dataclass, field
from typing import Any

from tests.core.facts import ROOT, Fixes, couple, lookup, lookup_table, readout, readout_table, table

from tiebeam.core.facts import Table
from tiebeam.core.finding import Finding
from tiebeam.core.findings import Context, findings_of


@dataclass(frozen=True)
class Case:
    """Tables, and what else the rules may ask for."""

    what: str
    tables: tuple[Table, ...]
    severity: str = "info"
    fix: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def findings(self, code: str = "") -> list[Finding]:
        found = findings_of(Context(tables=self.tables, fixes=Fixes(), **self.facts))
        return [f for f in found if not code or f.code == code]


def case(what: str, *tables: Table, severity: str = "info", fix: str | None = None, **facts: Any) -> Case:
    return Case(what, tables, severity, fix, facts)


ON_PURPOSE = {"untied_on_purpose": True}
ALIASED = table(state="aliased", names=("embed.weight", "head.weight"), readouts=(readout("head.weight", "head"),))
NAMES = {"names": ("embed.weight", "head.weight"), "readouts": (readout(where="head"),)}


def at_logit_std(s: float, **changes: Any) -> Table:
    return table(std=s / ROOT, **changes)


HEALTHY = case("a healthy tied table", table())

FIRES: dict[str, tuple[Case, ...]] = {
    "no-table": (case("no table at all"),),
    "no-logits": (case("token ids alone returned", lookup_table(), severity="warning", silent=True),),
    "aliased-storage": (
        case("two parameters on one storage", ALIASED, severity="error", fix="tie embed.weight to head.weight"),
    ),
    "gradient-cut": (
        case("the readout detached", table(state="cut", readouts=(readout(gradient=False),)), severity="error"),
        case("the lookup detached", table(state="cut", lookups=(lookup(gradient=False),)), severity="error"),
    ),
    "untied": (
        case("a pair", *couple("untied")),
        case("a pair on purpose", *couple("untied"), **ON_PURPOSE),
        case("a lookup without a readout", lookup_table(notes=("no partner",))),
        case("a readout without a lookup", readout_table(notes=("no partner",))),
    ),
    "copy-not-tie": (
        case("equal values", *couple("copy", 0.0), severity="warning", fix="tie embed.weight to head.weight"),
        case("equal values on purpose", *couple("copy", 0.0), severity="info", **ON_PURPOSE),
        case(
            "equal values stored transposed", *couple("copy", 0.0, readout={"vocab_axis": 1}), severity="warning",
            fix="",
        ),
    ),
    "drifted": (
        case("close values", *couple("drifted", 0.1), severity="warning", fix="tie embed.weight to head.weight"),
        case("close values on purpose", *couple("drifted", 0.1), severity="info", **ON_PURPOSE),
    ),
    "state-unknown": (case("no values", *couple("unknown", None, {"notes": ("no values",)})),),
    "fresh-partner": (
        case(
            "a fresh readout", *couple("untied", lookup={"fresh": False}), severity="warning",
            fix="tie embed.weight to head.weight",
        ),
        case("a fresh lookup", *couple("untied", readout={"fresh": False}), severity="warning", fix=""),
    ),
    "one-side-trained": (
        case(
            "a frozen readout", *couple("untied", readout={"trainable": False}), severity="warning",
            fix="train head.weight: True",
        ),
        case(
            "a frozen lookup", *couple("untied", lookup={"trainable": False}), severity="warning",
            fix="train embed.weight: True",
        ),
        case("on purpose", *couple("untied", readout={"trainable": False}), severity="info", **ON_PURPOSE),
    ),
    "several-names": (case("two names", table(**NAMES)),),
    "functional-tie": (
        case("a product in the model's own forward", table(readouts=(readout(where=""),))),
        case("a product in another module", table(readouts=(readout(where="decoder"),))),
        case("the holder's own in a collection", table(names=("params.embed.weight",), readouts=(readout(where=""),))),
        case(
            "a product in a module of a part's name",
            table(names=("encoder.embed.weight",), lookups=(lookup(where="encoder.embed"),)),
        ),
    ),
    "split-devices": (
        case("two devices", table(**NAMES), severity="warning", devices={"embed": "0", "head": "1"}),
        case("the rest elsewhere", table(**NAMES), severity="warning", devices={"": "0", "head": "cpu"}),
    ),
    "frozen-both-roles": (
        case("frozen, the rest trained", table(trainable=False), severity="warning", fix="train embed.weight: True"),
        case("all frozen", table(trainable=False), severity="info", fix="", trainable_elsewhere=0.0),
    ),
    "adapter-on-readout": (
        case("a low-rank product", table(readouts=(readout(delta=("lora.up",)),)), severity="warning"),
    ),
    "reparametrized-role": (
        case("a mask on the readout's table", table(readouts=(readout(reparametrized="mask"),)), severity="warning"),
        case("a mask on the lookup's table", table(lookups=(lookup(reparametrized="mask"),)), severity="warning"),
        case(
            "two different ones", table(lookups=(lookup(reparametrized="a"),), readouts=(readout(reparametrized="b"),)),
            severity="warning",
        ),
    ),
    "empty-table": (case("no rows", table(vocab=0, target_std=None), severity="warning"),),
    "non-finite": (
        case("a NaN", table(finite=False, std=None), severity="error", fix="initialize"),
        case("a hidden state that overflows", table(hidden_rms=math.inf), severity="error", fix=""),
    ),
    "constant-rows": (
        case("ones", table(constant=True, std=1.0), severity="warning", fix="initialize"),
        case("zeros", table(constant=True, std=0.0), severity="warning", fix="initialize"),
    ),
    "dtype-mixed": (case("a table in float32", table(), body_dtype="bfloat16"),),
    "init-scale": (
        case("a default of one", table(std=1.0), severity="error", fix="initialize"),
        case("a logit std just above four", at_logit_std(4.01), severity="error"),
        case("a logit std just above two", at_logit_std(2.01), severity="warning"),
        case("a readout alone", readout_table(std=1.0), severity="error"),
    ),
    "scale-unsure": (case("a default of one in a table of unknown age", table(std=1.0, fresh=None)),),
    "dead-logits": (
        case("times zero", table(readout_factor=0.0), severity="error"),
    ),
    "logits-small": (case("a logit std below a quarter", at_logit_std(0.24)),),
    "own-token": (case("a stream of mostly the row", table(readouts=(readout(kappa=0.9),))),),
    "lookup-small": (
        case("a plain std", table(lookup_factor=0.1), fix="scale embed by 8"),
        case("far too small for a factor", at_logit_std(0.01, lookup_factor=1.0), fix="scale embed by 8\ninitialize"),
        case("two places", table(lookup_factor=0.1, lookups=(lookup(), lookup(where="decoder"))), fix=""),
        case("nothing known of its rows' age", table(lookup_factor=0.1, fresh=None)),
    ),
    "factor-unknown": (
        case("a lookup factor", table(lookup_factor=None, notes=("lookup_factor is not known: it is random",))),
        case("readouts that differ", table(readout_factor=None, notes=("readout_factor differs between uses: 2, 3",))),
    ),
    "rounded-factor": (
        case("a rounded root", table(lookup_factor=8.01)),
        case("a rounded reciprocal", table(readout_factor=-0.1252)),
    ),
}  # fmt: skip

SILENT: dict[str, tuple[Case, ...]] = {
    "no-table": (HEALTHY,),
    "no-logits": (HEALTHY, case("a lookup without a readout", lookup_table())),
    "aliased-storage": (HEALTHY, case("two names of one object", table(**NAMES))),
    "gradient-cut": (HEALTHY, case("a frozen table", table(trainable=False))),
    "untied": (HEALTHY, case("a copy", *couple("copy", 0.0)), case("a drifted pair", *couple("drifted", 0.1))),
    "copy-not-tie": (HEALTHY, case("independent values", *couple("untied"))),
    "drifted": (HEALTHY, case("equal values", *couple("copy", 0.0)), case("independent", *couple("untied"))),
    "state-unknown": (HEALTHY, case("a known pair", *couple("untied"))),
    "fresh-partner": (
        case("both fresh", *couple("untied")),
        case("both trained", *couple("untied", lookup={"fresh": False}, readout={"fresh": False})),
        case("one unknown", *couple("untied", lookup={"fresh": False}, readout={"fresh": None})),
    ),
    "one-side-trained": (
        case("both trained", *couple("untied")),
        case("both frozen", *couple("untied", lookup={"trainable": False}, readout={"trainable": False})),
        case("unknown", *couple("unknown", None, readout={"trainable": False})),
    ),
    "several-names": (HEALTHY, case("an alias", ALIASED)),
    "functional-tie": (
        HEALTHY,
        case("a module of its own", table(**NAMES)),
        case("the module that holds it, in a collection", table(names=("params.embed.weight",))),
    ),
    "split-devices": (
        case("one device", table(**NAMES), devices={"embed": "0", "head": "0"}),
        case("no device map", table(**NAMES)),
        case("two tables on two devices", *couple("untied"), devices={"embed": "0", "head": "1"}),
    ),
    "frozen-both-roles": (HEALTHY, case("an untied frozen lookup", lookup_table(trainable=False))),
    "adapter-on-readout": (HEALTHY, case("untied", readout_table(readouts=(readout(delta=("lora.up",)),)))),
    "reparametrized-role": (
        HEALTHY,
        case("one for both", table(lookups=(lookup(reparametrized="m"),), readouts=(readout(reparametrized="m"),))),
        case("untied", readout_table(readouts=(readout(reparametrized="mask"),))),
    ),
    "empty-table": (HEALTHY,),
    "non-finite": (HEALTHY, case("no values", table(finite=None, std=None))),
    "constant-rows": (
        HEALTHY,
        case("an extra lookup that starts at zero", lookup_table(constant=True, std=0.0)),
        case("one row", table(constant=True, vocab=1)),
        case("width one", table(constant=True, width=1)),
    ),
    "dtype-mixed": (case("the same", table(), body_dtype="float32"), case("no other parameters", table())),
    "init-scale": (
        HEALTHY,
        case("a logit std of two", at_logit_std(1.99)),
        case("a trained table", table(std=1.0, fresh=False)),
        case("a table of unknown age", table(std=1.0, fresh=None)),
        case("no values", table(std=None)),
        case("a lookup alone", lookup_table(std=1.0)),
    ),
    "scale-unsure": (HEALTHY, case("a logit std of two", at_logit_std(1.99, fresh=None))),
    "dead-logits": (HEALTHY, case("a small factor", table(readout_factor=1e-3))),
    "logits-small": (HEALTHY, case("a quarter", at_logit_std(0.26)), case("trained", at_logit_std(0.1, fresh=False))),
    "own-token": (
        HEALTHY,
        case("trained", table(readouts=(readout(kappa=0.9),), fresh=False)),
        case("untied", readout_table()),
        case("unknown kappa", table(readouts=(readout(kappa=None),))),
    ),
    "lookup-small": (
        HEALTHY,
        case("normalised at once", table(lookup_factor=0.1, norm_after_lookup=True)),
        case("trained", table(lookup_factor=0.1, fresh=False)),
        case("all zero", lookup_table(std=0.0)),
        case("no values", table(lookup_factor=0.1, std=None)),
    ),
    "factor-unknown": (HEALTHY, case("another note", table(notes=("no values to compare",)))),
    "rounded-factor": (
        HEALTHY,
        case("the exact negative", table(lookup_factor=-ROOT)),
        case("far off", table(lookup_factor=8.2)),
        case("width one", table(width=1, lookup_factor=1.001)),
    ),
}  # fmt: skip
