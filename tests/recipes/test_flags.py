"""Flags of the recipes: `--help` lists all of them, in sentences that name their defaults."""

import ast
import re

import pytest
from absl import flags

from helpers.harness import ROOT, output_of, start_recipe, without_backend
from helpers.recipes import recipe

FLAGS = flags.FLAGS
SCRIPTS = {  # those without absl flags have their own tests
    path.stem
    for path in (ROOT / "recipes").glob("*.py")
    if "run_script" in path.read_text(encoding="utf-8")
}


def flags_read(name):
    """Return the names of the flags that a script reads as FLAGS.name."""
    tree = ast.parse((ROOT / "recipes" / f"{name}.py").read_text(encoding="utf-8"))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "FLAGS"
    }


@without_backend
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_help_lists_every_flag_in_a_sentence_with_its_default(name):
    before = {*FLAGS}
    with recipe(name) as module:
        listed = {flag.name: flag for flag in FLAGS.get_key_flags_for_module(module)}
        assert {*listed} == {*FLAGS} - before
        assert flags_read(name) <= {*listed}
        for flag in listed.values():
            text = re.sub("<.*>: ", "", " ".join(flag.help.split()))  # the values of an enum
            assert text[0].isupper() and text.endswith("."), f"--{flag.name}: {text}"
            assert flag.default is not None or "Default" in text, f"--{flag.name}: {text}"


@without_backend
def test_help_is_printed_with_the_recipe_s_promise():
    output = output_of(start_recipe("plain_vs_residual.py", "--help"))
    assert "Yu & Tomasi (2019)" in output
    assert "--data_dir" in output and "--accumulate" in output and "--artifact" in output


@without_backend
@pytest.mark.parametrize("words", [("--seed=-1",), ("--nonsense",), ("word",)])
def test_the_exit_status_is_2_for_an_invalid_command_line(words):
    assert words[0].strip("-") in output_of(start_recipe("mnist_gates.py", *words), returncode=2)
