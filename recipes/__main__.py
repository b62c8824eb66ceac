"""Run a recipe by its name, from wherever the package is installed.

    zoo-recipe ptb_char_lm --variant coupled
    python -m zoo.recipes ptb_char_lm --help

Without a name it lists the recipes. Run directories are made in the current folder. The exit
status is 2 if the command line is invalid, and 1 if a recipe fails.
"""

import ast
import difflib
import pathlib
import runpy
import sys

FOLDER = pathlib.Path(__file__).resolve().parent


def main() -> None:
    """Run the recipe that the first argument names, with the other arguments."""
    names = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
        for known in names:
            print(f"{known:22}{summary(known)}")
        return
    name = name.removesuffix(".py")
    if name not in names:
        near = difflib.get_close_matches(name, names) or names
        print(f"Expected a recipe, such as {', '.join(near)}. Received: {name}", file=sys.stderr)
        sys.exit(2)
    script = str(FOLDER / f"{name}.py")
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(FOLDER))  # recipes import `experiment` and others from there
    runpy.run_path(script, run_name="__main__")


def summary(name: str) -> str:
    """Return the first line of a recipe's docstring."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
