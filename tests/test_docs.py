"""The examples of README and docs run, their links lead somewhere, and every recipe is listed."""

import ast
import os
import re
import subprocess

import keras
import pytest

from helpers.harness import ROOT, without_backend
from zoo.recipes.experiment import catalog, pages

FOLDERS = {"zoo": "zoo", "zoo.graph": "zoo/graph", "zoo.callbacks": "callbacks"}
PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if "```python" in path.read_text()]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "recipes" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS += TUTORIALS


def run_examples(path):
    """Run the Python examples of a page, one after the other, in one namespace."""
    namespace = {"__name__": "__main__"}
    for number, code in enumerate(re.findall("```python\n(.*?)```", path.read_text(), re.S)):
        exec(compile(code, f"{path.name}, example {number + 1}", "exec"), namespace)


@without_backend
def test_the_examples_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_examples(ROOT / "README.md")
    assert (tmp_path / "smaller" / "saved_model.pb").exists()
    assert (tmp_path / "probes.html").exists()


@without_backend
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_examples_of_a_page_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    registered = dict(keras.saving.get_custom_objects())
    run_examples(path)
    keras.saving.get_custom_objects().clear()
    keras.saving.get_custom_objects().update(registered)


@without_backend
@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_no_folder_of_a_machine_is_named(path):
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https:)([^)#:]+)", text):
        assert (path.parent / link).exists() or f'"{link}"' in text, link  # a tutorial writes it
    assert not re.search(r"(?<![\w.])/(root|home|tmp|work)/", text)
    assert not re.search(r"^ *<!--\w+\.", text, re.M)  # in the site a list would end there


@without_backend
def test_the_numbers_of_the_report_are_those_on_record():
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    assert text.count("<!--/-->") > 50
    assert pages.with_numbers(text, pages.load_claims()) == text


@without_backend
def test_every_recipe_is_listed():
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    scripts = {f"{path.replace('.', '/')}.py" for path in catalog.EXPERIMENTS.values()}
    assert scripts <= set(re.findall(r"[\w/]+\.py", text))


@without_backend
def test_every_page_and_tutorial_is_in_the_navigation_of_the_site():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- [^:]+: (\S+)\.md$", settings, re.MULTILINE)
    docs = ROOT / "docs"
    pages = {path.stem for path in docs.glob("*.md")}
    pages |= {f"tutorials/{path.stem}" for path in TUTORIALS}
    assert len(listed) == len(set(listed))
    others = {page for page in listed if not page.startswith("api/")}
    assert others == pages | {"contributing", "changelog"}
    worker = re.search(r"polyfills: \[(\S+)\]", settings)[1]  # else the plugin takes one of the web
    assert "- offline" in settings and "iframe-worker" in worker and (docs / worker).exists()


@without_backend
def test_make_docs_runs_every_tutorial():
    own = {key: value for key, value in os.environ.items() if "MAKE" not in key and key != "MFLAGS"}
    command = ["make", "--dry-run", "--always-make", "docs"]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    for path in TUTORIALS:
        assert f"run_tutorial.py docs/tutorials/{path.name} build/tutorials" in done.stdout


@without_backend
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_begins_with_its_title_and_is_python(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    for code in re.findall("```python\n(.*?)```", text, re.S):
        compile(code, path.name, "exec")


@without_backend
@pytest.mark.parametrize("folder", ["zoo", "callbacks"])
def test_a_page_mentions_every_public_name(folder):
    paths = [*(ROOT / "docs").glob("*.md"), *TUTORIALS]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text("utf-8"))}
    tree = ast.parse((ROOT / folder / "__init__.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname for node in imports for alias in node.names if node.module[:3] == "zoo"}
    assert names and not names - words


@without_backend
@pytest.mark.parametrize("facade", FOLDERS)
def test_every_public_name_is_on_a_page_of_the_api(facade):
    text = "".join(path.read_text("utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    shown = set(re.findall(r"(?:^:::|heading:) (\S+)$", text, re.MULTILINE))
    tree = ast.parse((ROOT / FOLDERS[facade] / "__init__.py").read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname for node in imports for alias in node.names if node.module[:3] == "zoo"}
    assert names and {f"{facade}.{name}" for name in names} <= shown
