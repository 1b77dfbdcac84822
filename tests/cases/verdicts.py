"""What `tiebeam.inspect` must say of each row, decided from its diagnosis; and which rows come elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cases import adapters as live


@dataclass(frozen=True)
class Verdict:
    """State of the table that the lookup reads (None: see `note`), and codes that must appear.

    `raises` is a part of the message where the model cannot run at all. `note` says why a row that is
    not healthy shows little in the live model.
    """

    state: str | None = "tied"
    codes: frozenset[str] = frozenset()
    make: Callable[[dict[str, Any]], tuple[Any, Any]] = live.plain
    raises: str = ""
    note: str = ""


def row(state: str | None = "tied", codes: str = "", **more: Any) -> Verdict:
    return Verdict(state, frozenset(codes.split()), **more)


HISTORY = "what went wrong has left no trace in the tensors: the state is sound"
SMALL = "the vocabulary is too small to tell fresh rows from trained ones"

EXPECTED: dict[str, Verdict] = {
    # healthy: nothing beyond info
    "pt-healthy-alias": row(),
    "pt-healthy-functional": row(codes="functional-tie"),
    "pt-healthy-ema-deepcopy": row(make=live.averaged),
    "pt-coincident-equal": row("untied", make=live.only_modules),
    "pt-echo-at-init": row(codes="own-token", make=live.echo),
    "hf-healthy-tied-roundtrip": row(),
    "peft-healthy-ensure-tying": row(make=live.called("pm")),
    "peft-trainable-tokens-tied": row(make=live.called("pm")),
    "peft-modules-to-save-diverge": row(None, make=live.called("re"), note="untied while training, and says so"),
    # two tensors where one was meant
    "pt-assign-partial-stale": row("untied", "untied constant-rows", note="that it was tied once is not in it"),
    "pt-meta-to-empty": row(None, "constant-rows", make=live.materialised, note="memory not yet written"),
    "pt-param-wrap-shares-storage": row("aliased", "aliased-storage"),
    "hf-find-tied-misses-storage-tie": row("aliased", "aliased-storage"),
    "pt-clone-copy-diverges": row("drifted", "drifted"),
    "pt-two-copies-half-grads": row("drifted", "drifted", make=live.pipeline),
    "pt-drop-by-flag-not-by-alias": row("drifted", "drifted"),
    "pt-one-side-quantised": row("drifted", "drifted"),
    "pt-to-with-overwrite-flag": row("copy", "copy-not-tie"),
    "pt-deepcopy-head-only": row("copy", "copy-not-tie"),
    "pt-strict-false-random-head": row("untied", "untied", note=SMALL),
    "hf-untied-config-no-head": row("untied", "untied", note=SMALL),
    "rl-untied-server-not-updated": row(
        None, make=live.called("server"), note="distance 0.45 or 0.5, by which table it is measured against"
    ),
    "rl-stale-head-cache": row("untied", "one-side-trained", make=live.stale_cache),
    "hf-offload-tied": row(None, "meta-left"),
    "hf-t5-third-alias": row("drifted", "drifted", make=live.seq2seq),
    # config against tensors
    "hf-set-input-embeddings": row("drifted", "drifted"),
    "hf-flag-missing-from-config": row("untied", "flag-missing"),
    "hf-list-style-tied-keys": row("untied", "tied-keys-list", make=live.list_keys),
    "hf-nested-config-flag": row("tied", "config-scopes-disagree", make=live.two_scopes),
    "hf-nested-config-flag-false": row(None, "config-scopes-disagree", make=live.two_scopes),
    "hf-set-flag-after-load": row("tied", "flag-contradicts-tensors"),
    "hf-misspelt-kwarg": row("tied", "misspelt-flag", make=live.misspelt),
    "hf-runtime-tie-undeclared": row("tied", "flag-contradicts-tensors"),
    "hf-runtime-tie-other-param": row("untied", "undeclared-sharing"),
    # one name more
    "pt-head-replaced": row(codes="several-names", note="the tie holds; loaders will look for another name"),
    "pt-safetensors-refuses": row(codes="several-names"),
    "pt-safetensors-drops-alias": row(codes="several-names"),
    "pt-functional-call-two-values": row(codes="several-names"),
    "pt-sd-numel-vs-params": row(codes="several-names"),
    "pt-unregistered-head": row(codes="functional-tie"),
    "pt-export-both-names": row(codes="several-names", make=live.exported),
    # init and scale
    "pt-tie-keeps-normal1-init": row(codes="init-scale"),
    "pt-scale-convention-sqrt-d": row(codes="init-scale", make=live.without_head_factor),
    "pt-bf16-sqrt-d-rounding": row(codes="rounded-factor", make=live.rounded_scale),
    "pt-init-order-conflict": row(note=HISTORY),
    "pt-init-after-tie-reinit-loads": row(note=HISTORY),
    "pt-load-two-values-last-wins": row(note=HISTORY),
    "pt-pad-rows-sampled": row(make=live.padded, note="no tokenizer and no slice tells how many rows are real"),
    # one role changed or trained alone
    "pt-freeze-coupled": row(codes="frozen-both-roles"),
    "pt-weight-norm-on-head": row(None, "reparametrized-role"),
    "pt-random-prune-head": row(None, "reparametrized-role"),
    "peft-lora-head-merges-into-embed": row("tied", "adapter-on-readout", make=live.before_merge),
    "peft-only-embed-trained": row("copy", "one-side-trained", make=live.called("pm")),
    "peft-ensure-tying-on-untied": row("untied", "adapter-wants-tie", make=live.called("pm")),
    "peft-kbit-upcast": row(make=live.upcast, note="the function casts every parameter: nothing tells what they were"),
    # shapes that do not fit
    "pt-emsize-nhid-mismatch": row(None, raises="head"),
    "hf-bert-bias-resize": row(None, raises="bias"),
}

CHECKPOINT = "a file: `tiebeam.checkpoints`"
TRAINING = "an optimizer or a training loop: the model itself is sound"
OTHER_FRAMEWORK = "another framework's backend"
PLAN = "a plan for devices, ranks or shards: no model shows it"
NUMBERS = "numbers without a model"

ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(
        """pt-size-doubled-by-contiguous zero-consolidated-missing-alias peft-adapter-static
        ck-tied-redundant-equal ck-tied-distinct ck-untied-equal ck-odd-names ck-gguf-style-names""".split(),
        CHECKPOINT,
    ),
    **dict.fromkeys(
        """pt-decay-conflict pt-hand-ema-double pt-gradnorm-counted-twice
        pt-optimizer-built-before-tie""".split(),
        TRAINING,
    ),
    **dict.fromkeys(
        """hf-device-map-splits-tie pt-fsdp2-separate-groups tp-layout-mismatch
        pp-last-rank-skips-embed""".split(),
        PLAN,
    ),
    **dict.fromkeys("pt-int4-shared-hits-embed mup-tied-conflict".split(), NUMBERS),
    **dict.fromkeys(
        """fx-copied-kernel fx-attend-bf16-logits fx-normal1-init-loss fx-optax-label-misses-head
        fx-torch-ckpt-no-head nnx-healthy-attend eqx-tree-at-copy eqx-healthy-shared jax-opt-state-double
        ks-healthy-reversible ks-untied-from-tied-weights ks-tied-from-untied-weights
        ks-symbolic-dtype-mismatch ks-freeze-couples ks-weights-file-two-copies""".split(),
        OTHER_FRAMEWORK,
    ),
}
