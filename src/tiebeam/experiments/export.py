"""Every figure and every point of some runs as CSV: one line each, for any other tool."""

import csv
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run

COLUMNS = ("experiment", "run", "hash", "status", "seed", "commit", "config", "kind", "name", "step", "value")


def to_csv(runs: "Sequence[Run]") -> str:
    """Write runs as CSV, RFC 4180 but for the line ends: results with an empty step, points with theirs.

    Example:
        >>> to_csv([]).strip() == ",".join(COLUMNS)
        True
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        config = json.dumps(dict(run.config), sort_keys=True)
        head = (run.experiment, run.id, run.hash, run.status, run.config.get("seed"), run.commit, config)
        writer.writerows((*head, "result", name, "", repr(value)) for name, value in run.results.items())
        for name, points in run.series.items():
            writer.writerows((*head, "point", name, step, repr(value)) for step, value in points)
    return text.getvalue()
