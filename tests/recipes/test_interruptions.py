"""Recipes that are interrupted, or whose disk is full: one line, and the same command resumes."""

import pytest

from helpers.harness import output_of, start_changed_recipe, start_recipe, without_backend
from helpers.test_data import lines_of, write_images

INTERRUPTIONS = {  # changes that end the second epoch; status and message
    "Ctrl-C": (  # a suite that runs in the background inherits that SIGINT is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "os.kill(os.getpid(), signal.SIGINT)",
        130,
        "interrupted.",
    ),
    "limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))",
        1,
        "File too large",
    ),
    "full disk": ("raise OSError(28, os.strerror(28), 'state.npz')", 1, "No space left on device"),
}
PATCH = """
def fail(self, epoch, logs=None):
    if epoch == 1:
        {}

zoo.callbacks.StopOnNaN.on_epoch_end = fail
"""


@without_backend
@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_a_training_that_cannot_go_on_says_in_one_line_how_to_resume(tmp_path, name):
    statement, status, message = INTERRUPTIONS[name]
    data = write_images(tmp_path / "images.npz", (28, 28, 1))
    options = data, "--budget=smoke", "--epochs=2", "--noexport", f"--run_dir={tmp_path / 'run'}"
    changed = start_changed_recipe(
        tmp_path, "highway_conv.py", *options, patch=PATCH.format(statement)
    )
    *_, last = lines = output_of(changed, status).strip().splitlines()
    assert last.startswith("highway_conv_changed.py: ") and message in last
    assert last.endswith("Run the same command again to resume.")
    assert not any("Traceback" in line for line in lines)
    resumed = output_of(start_recipe("highway_conv.py", *options))
    assert "Resuming after epoch 1" in resumed
    *_, result, following = resumed.splitlines()  # after all lines of the log
    assert result.startswith("test accuracy on images") and "by guessing: 10.00 %" in result
    assert following.startswith("Next: python -m zoo.probe")
    assert lines_of(tmp_path / "run")[0]["epochs"] == 2
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".writing")]
