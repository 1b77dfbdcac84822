import subprocess
import sys

from tests.reports.examples import HEALTHY

from tiebeam.core.report import Report
from tiebeam.reports.html import to_html
from tiebeam.reports.jsontext import to_json
from tiebeam.reports.markdown import to_markdown
from tiebeam.reports.notebook import to_notebook
from tiebeam.reports.text import to_text

PROGRAM = """
import sys
import tiebeam.reports
from tiebeam.core.report import Report
heavy = {"rich", "html", "json", "importlib.resources", "tiebeam.reports.parts"}
report = Report(model="Tiny", framework="torch")
print(sorted(heavy & set(sys.modules)))
str(report)
print("rich" in sys.modules)
"""


def loaded():
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{PROGRAM}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_importing_the_renderers_loads_none_of_what_they_draw_with():
    before, after = loaded()
    assert before == "[]"
    assert after == "True"  # so the first line could have shown it


def test_the_report_shows_itself_by_these_renderers():
    assert set(Report.renderers) == {"text", "markdown", "json", "html", "notebook"}
    assert str(HEALTHY) == to_text(HEALTHY, color=False)
    assert HEALTHY.to_markdown() == to_markdown(HEALTHY)
    assert HEALTHY.to_json() == to_json(HEALTHY)
    assert HEALTHY.to_html() == to_html(HEALTHY)
    assert HEALTHY._repr_html_() == to_notebook(HEALTHY)
