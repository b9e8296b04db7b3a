"""What docs/python.md and the notebook show runs as it stands there."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = json.loads((DOCS / "notebook.ipynb").read_text())
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (DOCS / "python.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(codes: list[str], name: str) -> tuple[dict[str, Any], list[Any]]:
    """Run code piece by piece, as a notebook does; return what is there then, and what each piece shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for code in codes:
        *statements, last = ast.parse(code).body
        if not isinstance(last, ast.Expr):
            statements.append(last)
        exec(compile(ast.Module(statements, []), name, "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
    return names, shown


@pytest.mark.slow
def test_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "key").write_text("0123456789abcdef0123456789abcdef\n")
    (folder / "key").chmod(0o600)
    names, _ = run(BLOCKS, "python.md")
    assert (folder / "visitors.parquet.guarantee.json").exists()
    printed = capsys.readouterr()
    assert "(epsilon = 1, delta = 1e-06)-differential privacy" in printed.out and not printed.err
    sorted_visits = names["visits"].sort_values(["at", "visitor", "page"])
    assert names["ordered"].reset_index(drop=True).equals(sorted_visits.reset_index(drop=True))


def test_the_notebook_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, shown = run(CELLS, "notebook.ipynb")
    assert shown[1] is names["found"] and re.fullmatch(
        r"<counts: \d+ rows, epsilon = 1, delta = 1e-06>", repr(shown[1])
    )
    counts, visits = names["counts"], names["visits"]
    truth = visits[visits.page == "home"].groupby(visits["at"].dt.floor("D")).visitor.nunique()
    home = counts[counts.item == "home"]
    assert len(home) == 7 and (abs(home["count"].to_numpy() - truth.to_numpy()) <= home.error_bound + 60).all()
    assert shown[3]._repr_png_().startswith(b"\x89PNG")
    assert not capsys.readouterr().err


def test_the_notebook_is_kept_without_what_it_shows() -> None:
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert NOTEBOOK["nbformat"] == 4 and len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
