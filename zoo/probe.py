"""`python -m zoo.probe`: see `zoo.callbacks.__main__`."""

from absl import app

from zoo.callbacks.__main__ import define_flags, main

if __name__ == "__main__":
    define_flags()
    app.run(main)
