"""One experiment as one HTML file: its claim, its tables with the source's figures, its pictures, its command."""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiebeam.experiments import figures as drawing
from tiebeam.experiments.tables import Figure, Table
from tiebeam.reports.html import document, panel
from tiebeam.reports.markup import Markup, element, joined

if TYPE_CHECKING:
    from tiebeam.experiments.records import Run, Sweep
    from tiebeam.experiments.spec import Experiment


def to_html(experiment: "Experiment", sweep: "Sweep", runs: "Sequence[Run]", missing: int) -> str:
    """Write a sweep as a self-contained page.

    Args:
        experiment: Of what.
        sweep: What was asked for.
        runs: Those that are done.
        missing: How many are not.

    Raises:
        BackendError: matplotlib is missing.
    """
    body = [element("h1", experiment.name), element("p", experiment.claim, class_="verdict good")]
    body.append(element("p", f"After {experiment.source}. Profile: {sweep.profile}.", class_="soft"))
    if sweep.profile == "smoke":
        body.append(element("p", "This profile shows that it runs, and nothing else.", class_="verdict warning"))
    if missing:
        said = f"{missing} of {missing + len(runs)} runs are not done yet: these figures are of the others."
        body.append(element("p", said, class_="verdict warning"))
    body += [_table(table) for table in experiment.tables(runs)] if runs else []
    body += [_figure(figure) for figure in experiment.figures(runs)] if runs else []
    body += [element("h2", "How this was made"), panel(element("pre", element("code", sweep.command)), *_origin(runs))]
    return document(experiment.name, element("main", *body), pictures=True)


def _table(table: Table) -> Markup:
    titles, *rows = table.written()
    head = element("thead", element("tr", *(element("th", title, scope="col") for title in titles)))
    lines = [element("tr", element("th", row[0], scope="row"), *(element("td", c) for c in row[1:])) for row in rows]
    framed = element("div", element("table", head, element("tbody", *lines)), class_="tb-scroll")
    notes = [element("p", note, class_="soft") for note in table.notes]
    return joined(element("h2", table.title), panel(framed, *notes))


def _figure(figure: Figure) -> Markup:
    encoded = base64.b64encode(drawing.drawn(figure, "svg")).decode("ascii")
    source = f"data:image/svg+xml;base64,{encoded}"
    picture = element("img", src=source, alt=figure.title, style="max-width:100%;background:white")
    return joined(element("h2", figure.title), panel(picture))


def _origin(runs: "Sequence[Run]") -> list[Markup]:
    versions = sorted({f"{name} {version}" for run in runs for name, version in run.versions.items()})
    commits = sorted({run.commit for run in runs if run.commit})
    seeds = sorted({int(run.config["seed"]) for run in runs if "seed" in run.config})
    many = "" if len(seeds) == 1 else "s"
    said = [f"{len(runs)} runs, seed{many} {', '.join(map(str, seeds)) or 'none'}."]
    said += [f"Made with {', '.join(versions)}."] if versions else []
    said += [f"Commit {', '.join(commits)}."] if commits else []
    said.append("± is half the 95 % interval of the mean over seeds (Student's t).")
    return [element("p", line, class_="soft") for line in said]
