"""Start a benchmark: python recipes/benchmarks NAME."""

from zoo.recipes.benchmarks.harness import main

if __name__ == "__main__":
    main()
