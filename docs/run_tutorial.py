"""Run a tutorial, a page whose Python blocks are cells, and write it as a notebook.

Usage: python docs/run_tutorial.py PAGE FOLDER

What the tutorial itself writes goes to the folder, too. An error ends the run.
"""

import pathlib
import re
import sys

import jupytext
import nbformat
from nbconvert.preprocessors import CoalesceStreamsPreprocessor, ExecutePreprocessor


def is_log(output: nbformat.NotebookNode) -> bool:
    """Return True for what TensorFlow logs, some of it on stdout."""
    is_tensorflow = re.match(r"\s*(INFO|WARNING):tensorflow", output.get("text", ""))
    return output.get("name") == "stderr" or is_tensorflow is not None


def run(page: pathlib.Path, folder: pathlib.Path) -> None:
    """Write NAME.ipynb, with the outputs, of one tutorial."""
    folder.mkdir(parents=True, exist_ok=True)
    notebook = jupytext.read(page)
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = python
    ExecutePreprocessor(
        timeout=None, on_cell_start=lambda **at: print(page.stem, at["cell_index"], flush=True)
    ).preprocess(notebook, {"metadata": {"path": str(folder)}})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_log(output)]
    notebook, _ = CoalesceStreamsPreprocessor().preprocess(notebook, {})
    nbformat.write(notebook, folder / f"{page.stem}.ipynb")


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
