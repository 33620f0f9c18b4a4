"""Make every notebook from its text and run it: python notebooks/execute.py [NAME...]"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbclient
import nbformat

FOLDER = Path(__file__).parent


def execute(text: Path) -> None:
    """Write the notebook of a text, with the outputs of a fresh run. Raises when a cell fails."""
    notebook = jupytext.read(text)
    place = {"metadata": {"path": str(FOLDER)}}
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place)
    client.execute()
    for number, cell in enumerate(notebook.cells):
        # Ids and times of a run would change the file without changing what it says.
        cell["id"] = f"{text.stem[:2]}-{number:02d}"
        cell["metadata"].pop("execution", None)
    nbformat.write(notebook, text.with_suffix(".ipynb"))


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("0*.py")):
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            execute(path)
            print(path.with_suffix(".ipynb").name)
