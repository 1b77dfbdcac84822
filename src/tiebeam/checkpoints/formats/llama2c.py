"""llama2.c: seven integers, then every weight in a fixed order; the sign of the vocabulary tells the tie."""

import math
from pathlib import Path

from tiebeam.checkpoints.archive import Archive, Entry, Span
from tiebeam.checkpoints.dtypes import FLOAT32
from tiebeam.checkpoints.llama2c import read_header


def read(path: Path) -> Archive:
    """A file of `export.py`, version 0 (legacy) or 1; both hold float32.

    Raises:
        CheckpointError: It is none, or its size is not what its header asks for.
    """
    header = read_header(path)
    at, entries = header.start, {}
    for name, shape in header.shapes:
        stop = at + 4 * math.prod(shape)
        entries[name] = Entry(name, shape, FLOAT32, Span(path, at, stop), file=path.name)
        at = stop
    said = {"model_type": "llama2.c", "hidden_size": header.config["dim"], **header.config}
    return Archive(path, "llama2.c", entries, (path.name,), config=said, declares=header.tied)
