"""Reports made by hand, one for each kind that a renderer has to show."""

import math
from dataclasses import replace

from tiebeam.core.facts import Lookup, Predicted, Readout, Table
from tiebeam.core.finding import Finding
from tiebeam.core.report import Report, TableInit

HOSTILE = "<script>alert('x')</script>\x1b[31m\u202e|`*_]\"&amp;\r\n# [red]x[/red]"

_WTE = "transformer.wte.weight"
TIED = Table(
    names=(_WTE, "lm_head.weight"),
    vocab=50257,
    width=768,
    dtype="float32",
    state="tied",
    lookups=(Lookup(_WTE, "transformer.wte", "gather", 1.0, rms=0.03608),),
    readouts=(Readout(_WTE, "lm_head", 1.0, hidden_rms=1.0, normalized=True, kappa=0.9, logit_std=0.9987),),
    lookup_factor=1.0,
    readout_factor=1.0,
    hidden_rms=1.0,
    std=1 / math.sqrt(768),
    target_std=1 / math.sqrt(768),
    lr_ratio=1.0,
    fresh=True,
    spread=0.98,
    finite=True,
    predicted=Predicted(math.log(50257), 1.0, 0.0360844, 24.94, 11.3248),
)
HEALTHY = Report("MiniGPT", "torch", (TIED,), parameters=124439808, versions={"torch": "2.13.0", "tiebeam": "0.1.0"})

_LOUD = replace(
    TIED,
    std=1.0,
    lookups=(replace(TIED.lookups[0], rms=1.0),),
    predicted=Predicted(math.log(50257), math.sqrt(768), 1.0, 691.2, 702.0),
)
_FINDINGS = (
    Finding("own-token", "info", _WTE, "The token just read starts with a mean logit of 691."),
    Finding(
        "two-copies",
        "warning",
        "",
        "Two parameters, `a` and `b`, take the memory of one.",
        hint="Call `tie`.",
    ),
    Finding(
        "init-scale",
        "error",
        _WTE,
        "Fresh rows have std 1: logits start at std 27.71 and the first loss is near 702 instead of 10.82.",
        fix="report = tiebeam.initialize(model, inputs)\nreport.assert_healthy()",
    ),
)
UNHEALTHY = replace(HEALTHY, tables=(_LOUD,), findings=_FINDINGS)

_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
UNTIED = replace(
    HEALTHY,
    model="Untied",
    tables=(
        Table(
            names=(_EMBED,),
            vocab=300,
            width=64,
            dtype="bfloat16",
            state="untied",
            lookups=(Lookup(_EMBED, "model.embed_tokens", "gather", 8.0, count=2, norm_after=True),),
            lookup_factor=8.0,
            norm_after_lookup=True,
            std=0.02,
            target_std=0.125,
            lr_ratio=1.0,
            fresh=False,
            trainable=False,
            partner=_HEAD,
            distance=1.4142,
            padding_rows=(0, 299),
            predicted=Predicted(math.log(300), lookup_rms=0.16),
        ),
        Table(
            names=(_HEAD,),
            vocab=300,
            width=64,
            dtype="bfloat16",
            state="untied",
            readouts=(Readout(_HEAD, "", -0.5, soft_cap=30.0, bias=("lm_head.bias",), hidden_rms=2.0),),
            readout_factor=-0.5,
            soft_cap=30.0,
            readout_bias=True,
            hidden_rms=2.0,
            std=0.125,
            target_std=0.125,
            lr_ratio=1.0,
            partner=_EMBED,
            distance=1.4142,
            predicted=Predicted(math.log(300), logit_std=1.0, initial_loss=6.2038),
        ),
    ),
)

META = Report(
    "Big",
    "torch",
    (
        replace(
            TIED,
            lookups=(replace(TIED.lookups[0], rms=None),),
            readouts=(replace(TIED.readouts[0], kappa=None, logit_std=None),),
            std=None,
            fresh=None,
            spread=None,
            finite=None,
            predicted=Predicted(math.log(50257), own_logit_range=(0.0, 27.7128), initial_loss_range=(11.3248, 27.7128)),
        ),
    ),
    parameters=70_000_000_000,
    meta=True,
    init=(TableInit(_WTE, "analytic", None, 0.0360844, 1.0, None, written=False),),
)

UNKNOWN = Report(
    "Odd",
    "torch",
    (
        replace(
            TIED,
            state="unknown",
            lookups=(replace(TIED.lookups[0], factor=None, notes=("a buffer on meta has no value",)),),
            readouts=(replace(TIED.readouts[0], factor=None, hidden_rms=None, kappa=None),),
            lookup_factor=None,
            readout_factor=None,
            hidden_rms=None,
            target_std=None,
            lr_ratio=None,
            predicted=Predicted(math.log(50257)),
            notes=(
                "a tie is declared, and there are no values to compare",
                "readout_factor is not known: it comes from the inputs: 2.828 in one pass, 2.646 in another",
                "lookup_factor is not known: a buffer on meta has no value",
                "a remark about nothing in particular",
            ),
        ),
    ),
    parameters=38597376,
)

MANY_NAMES = replace(HEALTHY, tables=(replace(TIED, names=tuple(f"model.stage{i}.embed.weight" for i in range(40))),))

HOSTILE_NAMES = Report(
    HOSTILE,
    HOSTILE,
    (
        replace(
            TIED,
            names=(HOSTILE, ""),
            dtype=HOSTILE,
            lookups=(replace(TIED.lookups[0], name=HOSTILE, where=HOSTILE, reparametrized=HOSTILE),),
            readouts=(replace(TIED.readouts[0], name=HOSTILE, where=HOSTILE, bias=(HOSTILE,), delta=(HOSTILE,)),),
            partner=HOSTILE,
            notes=(HOSTILE,),
        ),
    ),
    (Finding(HOSTILE, "error", HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
    init=(TableInit(HOSTILE, "analytic", 1.0, 0.5, 1.0, 1.0, biases=(HOSTILE,)),),
    notes=(HOSTILE, "a lone surrogate \ud800"),
    versions={HOSTILE: HOSTILE},
)

EMPTY = Report(
    "Mlp",
    "torch",
    parameters=12,
    findings=(Finding("no-table", "info", "", "No vocabulary table was found."),),
)

INITIALISED = replace(
    HEALTHY,
    init=(
        TableInit(
            _WTE,
            "empirical",
            1.0,
            0.0360844,
            1.0,
            1.09,
            rounds=8,
            settled=False,
            biases=("lm_head.bias",),
            zero_rows=(0,),
            seed=7,
        ),
    ),
    notes=("inputs were made: token ids (1, 8)",),
)

CUT = replace(
    HEALTHY,
    tables=(
        replace(
            TIED,
            state="cut",
            lookups=(replace(TIED.lookups[0], gradient=False),),
            finite=False,
            constant=True,
        ),
    ),
)

EXAMPLES = {
    "healthy": HEALTHY,
    "unhealthy": UNHEALTHY,
    "untied": UNTIED,
    "meta": META,
    "unknown": UNKNOWN,
    "many-names": MANY_NAMES,
    "hostile": HOSTILE_NAMES,
    "empty": EMPTY,
    "initialised": INITIALISED,
    "cut": CUT,
}
