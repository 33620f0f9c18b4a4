"""The notebooks: text and notebook are the same, and every cell runs on the stored small study."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from nondet.study import load_study

nbformat = pytest.importorskip("nbformat", reason="the extra `notebooks` is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra `notebooks` is not installed")
jupytext = pytest.importorskip("jupytext", reason="the extra `notebooks` is not installed")
pytest.importorskip("ipykernel", reason="the extra `notebooks` is not installed")

FOLDER = Path(__file__).parent.parent / "notebooks"
STORED = Path(__file__).parent / "data" / "study"
TEXTS = sorted(FOLDER.glob("0*.py"))


def cells(notebook: Any) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.strip()) for cell in notebook.cells]


def test_there_are_five_pairs() -> None:
    names = [text.stem[:2] for text in TEXTS]
    assert names == ["01", "02", "03", "04", "05"]
    assert [text.stem for text in TEXTS] == sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_text_and_notebook_are_a_pair(text: Path) -> None:
    assert cells(jupytext.read(text)) == cells(nbformat.read(text.with_suffix(".ipynb"), 4))


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_stored_outputs_hold_no_error_and_no_path(text: Path) -> None:
    notebook = nbformat.read(text.with_suffix(".ipynb"), 4)
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert outputs
    assert not any(out.output_type == "error" for out in outputs)
    words = str([{k: v for k, v in out.items() if k != "data"} for out in outputs])
    words += str([dict(out.get("data", {}), **{"image/png": ""}) for out in outputs])
    for place in ("/home/", "/tmp/", str(FOLDER.parent)):
        assert place not in words


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_every_cell_runs(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NONDET_STUDY", raising=False)
    # Matplotlib says on standard error when a slow machine takes long over its list of fonts.
    import matplotlib.font_manager  # noqa: F401

    notebook = jupytext.read(text)
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        client = nbclient.NotebookClient(
            notebook, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}},
            timeout=1800, startup_timeout=600, iopub_timeout=600, raise_on_iopub_timeout=True,
        )  # fmt: skip
        # Files, since of ports that were free before the kernel starts one may be gone then.
        client.config.KernelManager.update(transport="ipc", ip=f"{folder}/kernel")
        client.execute()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert not any(out.get("name") == "stderr" for out in shown), shown
    if text.stem[:2] in ("02", "03"):
        assert sum("image/png" in out.get("data", {}) for out in shown) >= 2


def test_the_stored_study_is_small_and_shows_the_effect() -> None:
    size = sum(path.stat().st_size for path in STORED.rglob("*") if path.is_file())
    assert size < 1_000_000
    study = load_study([STORED])
    assert not study.failed
    assert any(run.repeat for run in study.complete)
