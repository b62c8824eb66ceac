"""The command `python -m zoo.launch`, see `zoo.distribute.launch`."""

import sys

from zoo.distribute.launch import main

if __name__ == "__main__":
    sys.exit(main())
