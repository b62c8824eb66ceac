"""Hooks of MkDocs: pages from outside this folder, executed tutorials, and the pages of the API.

The Markdown files link to each other as they lie in the repository; links are rewritten to where
the site has them. `make docs` uses it.
"""

import ast
import pathlib
import posixpath
import re
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parent.parent
TYPES = ROOT / "build" / "types"  # the package's folders under the names they are imported by
FACADES = ("zoo", "zoo.graph", "zoo.callbacks")
PAGES = {  # address in the site: file of the repository
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
FOLDERS = {"tutorials": "build/tutorials", "recipes/results": "recipes/results"}
SHOWN = (".md", ".png", ".ipynb", ".html", ".csv")  # files of these folders
MOVED = {  # targets of links that have another address in the site
    **{path: address for address, path in PAGES.items()},
    "README.md": "index.md",
}
API = {  # page: title, modules shown whole, packages whose names the facades export
    "applications": ("Networks", [], ["zoo.applications"]),
    "layers": ("Layers", [], ["zoo.layers"]),
    "graph": ("Graph modifications", [], ["zoo.graph"]),
    "callbacks": ("Probes and callbacks", [], ["zoo.callbacks"]),
    "datasets": (
        "Data sets",
        [f"zoo.datasets.{name}" for name in ("images", "preprocessing", "batches", "text")],
        [],
    ),
    "export": ("Export", ["zoo.export"], ["zoo.export"]),
    "distribute": ("Several devices", ["zoo.distribute"], []),
    "training": (
        "Training and files",
        ["zoo.optimizers", "zoo.regularizers", "zoo.initializers", "zoo.io"],
        ["zoo.backend"],
    ),
}
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)  # up to an empty line
FENCED = r"\n\1```pycon\n\g<0>\n\1```"  # with the doctest's indent


class Docstrings(griffe.Extension):
    """Show the doctests of docstrings as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the doctests of one docstring."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(FENCED, obj.docstring.value)


def exported() -> dict[str, str]:
    """Return the public names of the facades, modules last, and where each is defined."""
    names: dict[str, str] = {}
    modules: dict[str, str] = {}
    for facade in FACADES:
        tree = ast.parse((TYPES / facade.replace(".", "/") / "__init__.py").read_text("utf-8"))
        imports = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
        for node in (n for n in imports if n.module.split(".")[0] == "zoo"):
            for alias in node.names:
                target = f"{node.module}.{alias.name}"
                source = TYPES / f"{target.replace('.', '/')}.py"
                code = source.read_text("utf-8") if source.exists() else ""
                function = f"\ndef {alias.name}(" in code  # which has its module's name
                found = modules if code and not function else names
                found[f"{facade}.{alias.name}"] = f"{target}.{alias.name}" if function else target
    return names | modules


def _entry(name, target):
    """Return a mkdocstrings directive; a function with its module's name needs the full path."""
    *_, module, last = target.split(".")
    options = f"\n    options:\n      heading: {name}\n      toc_label: {last}"
    return f"{target}{options}" if module == last else name


def api_pages() -> dict[str, str]:
    """Return the Markdown of the pages of the API.

    Raises:
        PluginError: If a public name is on none of them.
    """
    names = exported()
    pages = {}
    for page, (title, modules, packages) in API.items():
        shown = list(modules)
        for name, target in list(names.items()):
            if name in modules:
                del names[name]
            elif any(f"{target}.".startswith(f"{package}.") for package in packages):
                del names[name]
                shown.append(_entry(name, target))
        pages[page] = "\n\n".join([f"# {title}", *(f"::: {entry}" for entry in shown)])
    if names:
        raise PluginError(f"`API` in docs/hooks.py has no page for {', '.join(names)}.")
    return pages


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs, the tutorials, the API, and the results."""
    for address, path in PAGES.items():
        files.append(File.generated(config, address, abs_src_path=str(ROOT / path)))
    for page, content in api_pages().items():
        files.append(File.generated(config, f"api/{page}.md", content=content))
    for place, name in FOLDERS.items():
        for path in sorted((ROOT / name).rglob("*")):
            if path.suffix in SHOWN:
                address = f"{place}/{path.relative_to(ROOT / name).as_posix()}"
                files.append(File.generated(config, address, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of a page from the repository's paths to the site's addresses."""
    address = page.file.src_uri
    source = PAGES.get(address, f"docs/{address}")

    def rewrite(match):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        target = MOVED.get(path, re.sub(r"\.py$", ".md", path.removeprefix("docs/")))
        return match[1] + posixpath.relpath(target, posixpath.dirname(address)) + match[3]

    markdown = LINK.sub(rewrite, markdown).replace("<details>", '<details markdown="1">')
    if address.startswith("tutorials/"):
        name = pathlib.PurePosixPath(address).stem
        markdown += f"\n\n[Download this page as a notebook.]({name}.ipynb)\n"
    return markdown
