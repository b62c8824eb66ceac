"""Hooks of MkDocs: pages from outside this folder, executed tutorials, and doctests.

The Markdown files link to each other as they lie in the repository; links are rewritten to where
the site has them. `make docs` uses it.
"""

import pathlib
import posixpath
import re
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).parent.parent
# Address in the site: file of the repository
PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
FOLDERS = {"tutorials": "build/tutorials", "recipes/results": "recipes/results"}
SHOWN = (".md", ".png", ".ipynb", ".html", ".csv")  # files of these folders
MOVED = {  # targets of links that have another address in the site
    **{path: address for address, path in PAGES.items()},
    "README.md": "index.md",
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


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside docs, the tutorials, and the results."""
    for address, path in PAGES.items():
        files.append(File.generated(config, address, abs_src_path=str(ROOT / path)))
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
        target = MOVED.get(path, path.removeprefix("docs/"))
        return match[1] + posixpath.relpath(target, posixpath.dirname(address)) + match[3]

    markdown = LINK.sub(rewrite, markdown).replace("<details>", '<details markdown="1">')
    if address.startswith("tutorials/"):
        name = pathlib.PurePosixPath(address).stem
        markdown += f"\n\n[Download this page as a notebook.]({name}.ipynb)\n"
    return markdown
