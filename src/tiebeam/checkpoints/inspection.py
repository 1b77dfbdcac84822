"""Look at a checkpoint: headers first, values only where the verdict needs them."""

from pathlib import Path

from tiebeam.checkpoints.archive import Archive
from tiebeam.checkpoints.findings import checkpoint_findings
from tiebeam.checkpoints.judging import Facts, judge
from tiebeam.checkpoints.opening import open_archive
from tiebeam.core.checkpoint import CheckpointReport


def inspect(
    path: str | Path,
    config: object = None,
    *,
    table: str | None = None,
    readout: str | None = None,
) -> CheckpointReport:
    """Say whether a checkpoint is tied, whether its config agrees, and what follows.

    Reads headers, and values only where two matrices have to be compared: they are mapped, and the comparison ends at
    the first block that differs. Nothing is written, no code of a file is run.

    Args:
        path: A file of safetensors, PyTorch (zip), GGUF, Keras, npz or llama2.c; an index of shards, with or without
            them; one of several shards, which stands for all; or a folder that holds one.
        config: A config as a mapping or an object, or its file or folder; by default `config.json` beside the file.
        table: Name of the table, where it cannot be told from names and shapes.
        readout: Name of the readout, likewise.

    Returns:
        A `CheckpointReport`: `table`, `readout`, `declared`, `effective`, `state`, `findings`.

    Raises:
        CheckpointError: There is no checkpoint, or it is truncated, lies about its sizes, or would run code.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from safetensors.numpy import save_file
        >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> save_file({"model.embed_tokens.weight": np.ones((64, 8), np.float32)}, path)
        >>> inspect(path, {"model_type": "llama", "tie_word_embeddings": True}).state
        'omitted'
        >>> report = inspect(path, {"model_type": "llama"})
        >>> report.state, report.effective, [f.code for f in report.findings]
        ('no-readout', False, ['readout-missing'])
    """
    return report_of(judge(open_archive(path, config), table, readout))


def report_of(facts: Facts) -> CheckpointReport:
    """The report on what was judged."""
    archive = facts.archive
    elements, nbytes = _sizes(archive)
    return CheckpointReport(
        path=str(archive.path),
        format=archive.format,
        state=facts.state,
        table=facts.roles.table,
        readout=facts.roles.readout,
        declared=facts.tying.declared,
        effective=facts.tying.effective,
        ends=facts.stored(),
        findings=checkpoint_findings(facts),
        files=archive.files,
        tensors=len(archive.entries),
        elements=elements,
        nbytes=nbytes,
        vocab=facts.vocab,
        gap=facts.comparison.gap,
        notes=tuple(filter(None, (facts.tying.why, facts.comparison.why))),
    )


def _sizes(archive: Archive) -> tuple[int | None, int | None]:
    if archive.has_values:
        return archive.held()
    return archive.totals.get("total_parameters"), archive.totals.get("total_size")
