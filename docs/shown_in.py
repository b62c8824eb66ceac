"""Pages that show a public name, read from the tutorials and the guides themselves.

`docs/hooks.py` writes them below the entries of the API.
"""

import ast
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
FACADES = {"zoo": "zoo", "zoo.callbacks": "callbacks", "zoo.distribute": "zoo/distribute"}
EXAMPLE = re.compile("```python\n(.*?)```", re.S)
NAME_IN_TEXT = re.compile(r"`(?:zoo\.)?(?:callbacks\.|distribute\.)?(\w+)[`(.]")
GUIDES = "layers networks probes any_model export devices memory performance weights".split()


class Page(NamedTuple):
    """A page of the site.

    Attributes:
        kind: "Tutorial" or "Guide".
        title: Its heading.
        address: Place in the site, with .html.
        names: Dotted names below `zoo` that it shows.
    """

    kind: str
    title: str
    address: str
    names: set[str]


def exported() -> dict[str, str]:
    """Return the public names of the facades, modules last, and where each is defined."""
    found = {}
    modules = {}
    for facade, folder in FACADES.items():
        tree = ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module.startswith("zoo."):
                folder = re.sub(r"^zoo\.(?=applications|callbacks)", "", node.module)
                place = ROOT / folder.replace(".", "/")
                for alias in node.names:
                    target = f"{node.module}.{alias.name}"
                    source = place / f"{alias.name}.py"
                    is_module = source.exists()
                    if is_module and f"\ndef {alias.name}(" in source.read_text(encoding="utf-8"):
                        is_module = False  # a function that has its module's name
                        target += f".{alias.name}"
                    names = modules if is_module else found
                    names[f"{facade}.{alias.asname or alias.name}"] = target
    return found | modules


def used_names(code: str) -> set[str]:
    """Return the dotted names below `zoo` that a script uses."""
    tree = ast.parse(code)
    meaning = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            heads = [alias.name.partition(".")[0] for alias in node.names]
            meaning |= dict(zip(heads, heads, strict=True))
            meaning |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            meaning |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    names = {_dotted(node, meaning) for node in ast.walk(tree)}
    return {name for name in names if name.startswith("zoo.")}


def _dotted(node, meaning):
    """Return the full name of `a` or `a.b.c`; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, meaning)
        return owner and f"{owner}.{node.attr}"
    return meaning.get(node.id, "") if isinstance(node, ast.Name) else ""


def pages() -> list[Page]:
    """Return tutorials, with the names in their code, and guides, with those in the text, too."""
    found = []
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        code = path.read_text(encoding="utf-8")
        title = re.search("^# # (.*)", code, re.M)[1]
        found.append(Page("Tutorial", title, f"tutorials/{path.stem}.html", used_names(code)))
    public = {name.rpartition(".")[2]: name for name in exported()}
    for stem in GUIDES:
        text = (ROOT / "docs" / f"{stem}.md").read_text(encoding="utf-8")
        title = re.search("^# (.*)", text, re.M)[1]
        named = {public[name] for name in NAME_IN_TEXT.findall(text) if name in public}
        names = named | used_names("\n".join(EXAMPLE.findall(text)))
        found.append(Page("Guide", title, f"{stem}.html", names))
    return found


def shown_in() -> dict[str, list[Page]]:
    """Return the pages that show each name, tutorials first."""
    shown: dict[str, list[Page]] = {}
    for page in pages():
        for name in sorted(page.names):
            shown.setdefault(name, []).append(page)
    return shown
