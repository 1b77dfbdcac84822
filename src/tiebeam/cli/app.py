"""The commands: each resolves its target, asks the public calls, prints, and ends with a telling code."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tiebeam.cli.checkpoint import checkpoint_command
from tiebeam.cli.experiment import experiment_app
from tiebeam.cli.options import DebugOpt, FailOnOpt, FormatOpt, OutputOpt, PlainOpt
from tiebeam.cli.output import (
    HEALTHY,
    FailOn,
    Format,
    Plain,
    check_file,
    check_suffix,
    exit_code,
    format_for,
    note,
    outcome,
    show,
    show_plain,
    stdout_kept_clean,
)

if TYPE_CHECKING:
    from tiebeam.cli.target import Target
    from tiebeam.core.report import Report

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Backend(StrEnum):
    """What Keras computes with."""

    jax = "jax"
    torch = "torch"
    tensorflow = "tensorflow"


class Mode(StrEnum):
    """How `init` finds the std."""

    auto = "auto"
    analytic = "analytic"
    empirical = "empirical"


_TARGET = (
    "module:callable, a folder or file with a Hugging Face config.json, a .keras file, a model type such as gpt2, or "
    "hf:org/name."
)

TargetArg = Annotated[str, typer.Argument(metavar="TARGET", help=_TARGET, show_default=False)]
SeedOpt = Annotated[
    int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of random weights, of dropout, and of draws.")
]
BackendOpt = Annotated[
    Backend | None,
    typer.Option("--backend", help="What Keras computes with. Default: KERAS_BACKEND, or Keras's own config."),
]
ImportOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import it first: it registers classes that a .keras file names. Its code runs.",
    ),
]
DataOpt = Annotated[
    str, typer.Option("--data", "-d", metavar="FILE", help="Text; ids in .npy, .npz, .json; or module:callable.")
]
RowsOpt = Annotated[int, typer.Option("--rows", min=1, help="Sequences taken from a text or a list of ids.")]
TokensOpt = Annotated[int, typer.Option("--tokens", min=2, help="Tokens of each.")]


app.command("checkpoint")(checkpoint_command)


def _version(wanted: bool) -> None:
    if wanted:
        import tiebeam

        typer.echo(f"tiebeam {tiebeam.__version__}")
        raise typer.Exit


@app.callback()
def tiebeam_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """See what a language model does with its embedding table, and set it right.

    Exit codes: 0 healthy; 1 a finding at or above --fail-on; 2 could not look; 130 interrupted.
    """


@app.command("inspect")
def inspect_command(
    target: TargetArg,
    *,
    meta: Annotated[bool, typer.Option("--meta", help="Build without memory: structure, no values.")] = False,
    form: FormatOpt = None,
    output: OutputOpt = None,
    fail_on: FailOnOpt = FailOn.warning,
    backend: BackendOpt = None,
    imports: ImportOpt = None,
    seed: SeedOpt = 0,
    debug: DebugOpt = False,
) -> None:
    """Run a model once and report how it uses its vocabulary tables.

    Says for each table whether lookup and readout share it, with which constant factors and std, what
    the first loss will be, and what is wrong, with the fix. Nothing is changed. The code of a
    module:callable runs; a hub repository's, and what a .keras file carries, never does.
    """
    with outcome(debug):
        check_file(output)
        form = form or format_for(output)
        import tiebeam
        from tiebeam.cli.building import PASS, seeded

        with stdout_kept_clean():
            found = _resolve(target, meta=meta, seed=seed, backend=backend, imports=imports)
            with seeded(seed, part=PASS):
                report = tiebeam.inspect(found.model, found.inputs, params=found.params)
        if meta and not report.meta:
            note("note: --meta changed nothing: what was built has values; JAX models take shapes (jax.eval_shape)")
        show(report, form, output)
        code = exit_code(report, fail_on)
    raise typer.Exit(code)


@app.command("measure")
def measure_command(
    target: TargetArg,
    *,
    data: DataOpt,
    rows: RowsOpt = 4,
    tokens: TokensOpt = 128,
    spectrum: Annotated[bool, typer.Option("--spectrum", help="Decompose the tables too.")] = False,
    form: FormatOpt = None,
    output: OutputOpt = None,
    backend: BackendOpt = None,
    imports: ImportOpt = None,
    seed: SeedOpt = 0,
    debug: DebugOpt = False,
) -> None:
    """Run one batch forward and backward and report what each role of the tables sends.

    Says the loss, what the logits do with the token just read, and the gradient of lookup and readout apart.
    Text is read by the target's own tokenizer, and byte by byte where it has none. Nothing is changed.
    """
    with outcome(debug):
        check_file(output)
        form = form or format_for(output)
        import tiebeam
        from tiebeam.cli.building import PASS, seeded
        from tiebeam.cli.data import file_of

        file_of(data)
        with stdout_kept_clean():
            found = _resolve(target, meta=False, seed=seed, backend=backend, imports=imports)
            batch = _batch(data, target, found, rows, tokens)
            with seeded(seed, part=PASS):
                measured = tiebeam.measure(found.model, batch, params=found.params, spectrum=spectrum)
        show(measured, form, output)


@app.command("sensitivity")
def sensitivity_command(
    target: TargetArg,
    *,
    data: DataOpt,
    rows: RowsOpt = 4,
    tokens: TokensOpt = 128,
    bits: Annotated[
        list[int] | None,
        typer.Option("--bits", min=2, max=16, help="Of a weight; again for more. [default: 8, 6, 4]"),
    ] = None,
    group: Annotated[int, typer.Option("--group", min=0, help="Entries that share a scale; 0: whole rows alone.")] = 32,
    tolerance: Annotated[float, typer.Option("--tolerance", help="Divergence that is taken, in nats.")] = 0.01,
    form: PlainOpt = Plain.text,
    backend: BackendOpt = None,
    imports: ImportOpt = None,
    seed: SeedOpt = 0,
    debug: DebugOpt = False,
) -> None:
    """Round the table to few bits for one role at a time and report what each does to the next token.

    Says row and logit errors, the divergence and the tokens that change, and whether one quantised table can serve
    both roles. The data is read as by `measure`. Nothing is changed.
    """
    with outcome(debug):
        import tiebeam
        from tiebeam.cli.building import PASS, seeded
        from tiebeam.cli.data import file_of

        file_of(data)
        with stdout_kept_clean():
            found = _resolve(target, meta=False, seed=seed, backend=backend, imports=imports)
            batch = _batch(data, target, found, rows, tokens)
            with seeded(seed, part=PASS):
                seen = tiebeam.sensitivity(
                    found.model, batch, params=found.params, bits=bits or (8, 6, 4), group=group or None,
                    tolerance=tolerance,
                )  # fmt: skip
        show_plain(seen, form)
    raise typer.Exit(HEALTHY)


@app.command("init")
def init_command(
    target: TargetArg,
    *,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the weights and what belongs to them.")],
    mode: Annotated[
        Mode, typer.Option("--mode", help="From the structure alone, measured, or whichever serves.")
    ] = Mode.auto,
    backend: BackendOpt = None,
    imports: ImportOpt = None,
    seed: SeedOpt = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace files in a folder that is not empty.")] = False,
    debug: DebugOpt = False,
) -> None:
    """Initialise a model's vocabulary tables so that its logits start at unit variance, and save it.

    Writes safetensors and a config (of a Keras model a .keras file): the folder appears whole or not at all.
    One seed gives the same tables everywhere. Everything but the tables and the readout's bias keeps its values.
    """
    with outcome(debug):
        from tiebeam.cli.building import PASS, seeded
        from tiebeam.cli.save import check_out, save
        from tiebeam.errors import TargetError

        check_out(out, force=force)
        with stdout_kept_clean():
            found = _resolve(target, meta=False, seed=seed, backend=backend, imports=imports)
            with seeded(seed, part=PASS):
                found, report = _initialized(found, mode.value, seed)
            if not report.init:
                raise TargetError(f"'{target}' has no vocabulary table to initialise", expected="a language model")
            if found.weights == "file":
                tables = ", ".join(i.name for i in report.init)
                note(f"note: the weights of {tables} in the file are replaced by new draws")
            names = save(found.model, report, out, params=found.params, force=force)
        show(report, Format.text, None)
        note(f"wrote {', '.join(names)} to {out}")


@app.command("demo")
def demo_command(
    *,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Training steps of each model.")] = None,
    vocab: Annotated[int | None, typer.Option("--vocab", min=64, help="Tokens of the vocabulary.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.html", help="Where the HTML report goes.")] = Path(
        "tiebeam-demo.html"
    ),
    seed: SeedOpt = 0,
    debug: DebugOpt = False,
) -> None:
    """Diagnose the classic mistake, mend it, and train both models side by side.

    A small GPT with a tied table at nn.Embedding's default std is inspected and initialised, and both
    versions learn from the Python standard library's sources. Ends with a table and an HTML report with
    both loss curves. Needs torch and tokenizers; about a minute on two cores.
    """
    with outcome(debug):
        check_file(out)
        check_suffix(out, ".html", ".htm")
        from tiebeam.cli.demo import show_demo

        show_demo(out, **_given(steps=steps, vocab=vocab, seed=seed))
    raise typer.Exit(HEALTHY)


app.add_typer(experiment_app, name="experiment")


@app.command("advise")
def advise_command(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="A config, weights in any format that checkpoint reads, a folder, a model type, or hf:org/name.",
            show_default=False,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None, typer.Option("--config", help="The config that belongs to an index or a file.", metavar="FILE")
    ] = None,
    vocab: Annotated[int | None, typer.Option("--vocab", min=1, help="Rows of a table.")] = None,
    width: Annotated[int | None, typer.Option("--width", min=1, help="Columns of a table.")] = None,
    layers: Annotated[
        int | None, typer.Option("--layers", min=0, help="Blocks of 12 x width**2; 0: the tables alone.")
    ] = None,
    body: Annotated[int | None, typer.Option("--body", min=0, help="Parameters beside the two tables.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences, to count logits for.")] = 8,
    length: Annotated[int, typer.Option("--length", min=1, help="Tokens of each.")] = 1024,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Of weights, gradients, logits. Default: float32.", show_default=False)
    ] = None,
    optimizer: Annotated[str, typer.Option("--optimizer", help="Whose memory is counted.")] = "adamw",
    form: FormatOpt = None,
    output: OutputOpt = None,
    debug: DebugOpt = False,
) -> None:
    """Say what tying would save, what it would not, whether to, and how sure that is.

    From a config, weights, or --vocab, --width and --layers. No weight is loaded and no code of a repository runs:
    what transformers knows is built without memory and counted exactly, anything else goes by a formula that is named.
    """
    with outcome(debug):
        check_file(output)
        form = form or format_for(output)
        import tiebeam

        sizes = _given(config=config, vocab=vocab, width=width, layers=layers, body=body, dtype=dtype)
        with stdout_kept_clean():
            found = tiebeam.advise(_fetched(target), batch=batch, length=length, optimizer=optimizer, **sizes)
        show(found, form, output)
    raise typer.Exit(HEALTHY)


def _fetched(target: str | None) -> str | None:
    """The file of a hub target; any other as it is."""
    if target is None or not target.startswith("hf:"):
        return target
    from tiebeam.cli.hub import config_file

    return str(config_file(target.removeprefix("hf:")))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _initialized(
    found: "Target", mode: "Literal['auto', 'analytic', 'empirical']", seed: int
) -> "tuple[Target, Report]":
    """The target with new tables, and the report."""
    import tiebeam
    from tiebeam.backends import entry_of

    if not entry_of(found.model, found.params).functional:
        return found, tiebeam.initialize(found.model, found.inputs, mode=mode, seed=seed)
    made, report = tiebeam.initialize_params(found.model, found.inputs, found.params, mode=mode, seed=seed)
    return (replace(found, model=made) if found.params is None else replace(found, params=made)), report


def _batch(data: str, target: str, found: "Target", rows: int, tokens: int) -> Any:
    """What the model is to be run on, and a word on it."""
    from tiebeam.cli.data import batch_of

    batch, said = batch_of(data, target, found, rows=rows, tokens=tokens)
    note(f"note: measured on {said}")
    if found.weights == "random":
        note("note: the weights are random")
    return batch


def _resolve(target: str, *, meta: bool, seed: int, backend: Backend | None, imports: list[str] | None) -> "Target":
    from tiebeam.cli.keras_target import choose_backend
    from tiebeam.cli.targets import resolve

    choose_backend(backend.value if backend else None)
    found = resolve(target, meta=meta, seed=seed, imports=tuple(imports or ()))
    for line in found.notes:
        note(f"note: {line}")
    return found
