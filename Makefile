# The first of these that is Python 3.11 or newer and can create virtual environments.
CANDIDATES := python3.11 python3.12 python3.13 python3
PROBE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c '$(PROBE)' >/dev/null 2>&1 && { echo $$p; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -c constraints.txt
BACKENDS := tensorflow jax torch
# The backend of `make demo`, and what it needs: TensorFlow writes the SavedModel.
BACKEND := $(or $(KERAS_BACKEND),tensorflow)
EXTRA_tensorflow := [tensorflow]
EXTRA_jax := [tensorflow,jax]
EXTRA_torch := [tensorflow,torch]
EXTRA_docs := [docs]
TUTORIALS := $(patsubst docs/%,build/%,$(wildcard docs/tutorials/*.md))
SOURCES := $(shell find zoo applications callbacks -name '*.py')
MARK := not slow
# Print each backend's output in one piece, where make supports it (4.0 and newer).
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

ifeq ($(filter $(BACKEND),$(BACKENDS)),)
$(error Expected KERAS_BACKEND of $(BACKENDS). Received: $(BACKEND))
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow smoke oldest results docs report lint types package format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 10

# glibc maps large buffers in 2 MB pages: a fifth less time for a step of the language model
demo: $(VENV)/$(BACKEND).stamp  ## train the language model for minutes, on $KERAS_BACKEND
	GLIBC_TUNABLES=glibc.malloc.hugetlb=1 KERAS_BACKEND=$(BACKEND) \
		$(BIN)/python recipes/ptb_char_lm.py --variant coupled --scale miniature

test: lint  ## lint, types and the tests on every backend
	@echo "Backends: $(BACKENDS), and types, side by side; each prints when it is done."
	@$(MAKE) --no-print-directory --keep-going --jobs=4 $(SYNC) types $(BACKENDS:%=test-%)

test-slow: $(VENV)/dev.stamp  ## the long tests, on every backend
	@$(MAKE) --no-print-directory --keep-going --jobs=3 $(SYNC) MARK=slow $(BACKENDS:%=test-%)

test-%: $(VENV)/dev.stamp
	@echo "== KERAS_BACKEND=$*"
	@KERAS_BACKEND=$* $(BIN)/python -m pytest -m '$(MARK)'

smoke:  ## train, probe, prune, save and load with PYTHON=python3.13, jax, and a venv of its own
	"$(PYTHON)" -m venv --clear build/smoke
	build/smoke/bin/python -m pip install --quiet -c constraints.txt -e '.[jax]'
	KERAS_BACKEND=jax build/smoke/bin/python tests/smoke.py

oldest:  ## test layers, graph and probes with the oldest Keras and JAX of pyproject.toml
	"$(PYTHON)" -m venv --clear build/oldest
	build/oldest/bin/python -m pip install --quiet -c .ci/oldest.txt -e '.[jax]' pytest pyparsing
	KERAS_BACKEND=jax build/oldest/bin/python -m pytest -W ignore tests/layers tests/graph tests/callbacks

results: $(VENV)/tensorflow.stamp  ## write the generated parts of README.md and docs from recipes/results
	$(BIN)/python recipes/reproduce.py report

lint: $(VENV)/dev.stamp  ## check rules and format with ruff
	$(BIN)/ruff check
	$(BIN)/ruff format --check

docs: $(VENV)/docs.stamp package  ## run the tutorials, write the site to build/site
	@$(MAKE) --no-print-directory --jobs=2 $(TUTORIALS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

report: $(VENV)/docs.stamp  ## write docs/report.md as build/report.pdf
	sed 's/<!--[^>]*-->//g' docs/report.md | $(BIN)/markdown_py -x tables -x fenced_code | \
	  $(BIN)/weasyprint -q -s docs/report.css -u docs/report.md - build/report.pdf

# A tutorial is run again when it or the package has changed.
build/tutorials/%.md: docs/tutorials/%.md docs/run_tutorial.py $(SOURCES) | $(VENV)/docs.stamp
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python docs/run_tutorial.py $< $(@D)
	$(BIN)/jupyter-nbconvert --log-level=WARN --to=markdown $(@:.md=.ipynb)

types: $(VENV)/dev.stamp package  ## mypy on the package as it is installed
	cd build/types && $(abspath $(BIN))/mypy --config-file $(abspath pyproject.toml) -p zoo

package:
	rm -rf build/types
	mkdir -p build/types
	cp -r zoo build/types/zoo
	cp -r applications callbacks build/types/zoo/

format: $(VENV)/dev.stamp  ## repair rules and format with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove what make and the tools made, the virtual environment too
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# venv installs pip last, so this file exists only in a complete environment.
$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "Needs Python 3.11 or newer with venv (on Debian: apt install" \
		"python3-venv). Found none of: $(CANDIDATES). Name yours: make PYTHON=/path/to/python" >&2; \
		exit 1; }
	@"$(PYTHON)" -c '$(PROBE)' || { echo "PYTHON=$(PYTHON) is not Python 3.11 or newer with venv." >&2; \
		exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(BACKENDS:%=$(VENV)/%.stamp) $(VENV)/docs.stamp: $(VENV)/%.stamp: pyproject.toml setup.py constraints.txt | $(BIN)/pip
	$(INSTALL) -e '.$(EXTRA_$*)'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml setup.py constraints.txt | $(BIN)/pip
	$(INSTALL) -e '.[dev]'
	@touch $@ $(BACKENDS:%=$(VENV)/%.stamp)
