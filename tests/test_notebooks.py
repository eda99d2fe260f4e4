"""The example notebook: its cells compile and call what there is; and it is executed, as a person would."""

import ast
import json
from pathlib import Path

import pytest
from needs import needs_jupyter

from paceline import engine
from paceline.engine.config.settings import asked

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
OBJECTS = {"table": engine.Comparison, "runs": engine.Result, "stopped": engine.Result, "again": engine.Result}


def code_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def called(node: ast.expr) -> tuple[object, str] | None:
    """`engine.run` or `runs[0].plot`: of what, and the name."""
    if not isinstance(node, ast.Attribute):
        return None
    of = node.value.value if isinstance(node.value, ast.Subscript) else node.value
    if not isinstance(of, ast.Name):
        return None
    return (engine, node.attr) if of.id == "engine" else (OBJECTS[of.id], node.attr) if of.id in OBJECTS else None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_compile_and_use_names_that_there_are(notebook: Path) -> None:
    cells = code_of(notebook)
    found = [call for cell in cells for node in ast.walk(ast.parse(cell)) if (call := called(node))]  # type: ignore[arg-type]
    fields = {"summary", "path"}  # of a result, which its class does not have
    missing = [name for of, name in found if not hasattr(of, name) and name not in fields]
    assert not missing and len(found) >= 10
    scope: dict[str, object] = {}
    exec(cells[0], scope)
    given = asked(scope["SETTINGS"])  # type: ignore[arg-type]
    assert engine.prepare(given.overrides).experiment.hardware.fabric == "virtual"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(notebook: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@needs_jupyter
@pytest.mark.docs
@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_its_first_cell_to_its_last(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    opened = nbformat.read(notebook, as_version=4)
    NotebookClient(opened, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in opened.cells for output in cell.get("outputs", [])]
    shown = [output["data"] for output in outputs if "data" in output]
    streams = [output["text"] for output in outputs if output["output_type"] == "stream"]
    assert sum("image/svg+xml" in data for data in shown) >= 3
    progress = [data["text/html"] for data in shown if data["text/plain"].startswith("notebook-")]
    assert len(progress) == 5 and all("completed" in html for html in progress)  # a line a run, in place
    tables = [data["text/html"] for data in shown if "<table" in data.get("text/html", "")]
    assert any("notebook-local_sgd" in html and "speed-up" in html for html in tables)
    assert any("samples/s" in html for html in tables) and any("best_accuracy" in html for html in tables)
    assert all(text.startswith("note: ") for text in streams), streams
    assert (tmp_path / "runs" / "notebook-stopped" / "best.safetensors").exists()
