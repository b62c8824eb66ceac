"""`python -m zoo.probe`: see `zoo.callbacks.__main__`."""

from zoo.callbacks.__main__ import main

if __name__ == "__main__":
    main()
