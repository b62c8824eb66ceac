"""Run an experiment from wherever the package is installed.

    zoo-recipe list
    zoo-recipe ptb_char_lm --variant coupled
    zoo-recipe srivastava2015/gates --scale smoke

The arguments are those of recipes/reproduce.py. Run directories are made in the current folder.
"""

import sys

from zoo.recipes import reproduce
from zoo.recipes.experiment import command_line


def main() -> None:
    """Run the command line of this process."""
    sys.exit(command_line.guarded(lambda: reproduce.main(sys.argv[1:])))


if __name__ == "__main__":
    main()
