"""List the packages of the wheel: folders at the top level, too, have names below zoo."""

from setuptools import find_namespace_packages, find_packages, setup

OUTSIDE = ["recipes.results*", "*__pycache__"]
packages = find_namespace_packages(include=["zoo*"], exclude=OUTSIDE)  # zoo.pretrained has files
packages += [f"zoo.{name}" for name in find_packages(include=["applications*", "callbacks*"])]
recipes = find_namespace_packages(include=["recipes*"], exclude=OUTSIDE)
setup(packages=packages + [f"zoo.{name}" for name in recipes])
