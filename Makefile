# Everything a person or CI does here is one of these targets. Needed beforehand: Python >= 3.11, git, make.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3 python; do \
	$$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
# PyTorch's own index of builds without CUDA, asked only when the configured index has none.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# Scripts of an environment hold its path: one made in another folder is as useless as one whose Python is gone.
IS_SOUND = grep -qxF '$(CURDIR)' $(VENV)/place && $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))'

.PHONY: help demo test check format parity size docs clean

help: ## Show what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/installed ## Install, and make demo.mp4 from the embedded model
	$(BIN)/omnireel generate "a red ball bounces over a checkered floor" --seed 7 -o demo.mp4

test: $(VENV)/installed-dev ## Install what tests need, and run them all
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

parity: $(VENV)/installed-dev ## Compare with the public reference only
	$(BIN)/python -m pytest tests/parity

check: $(VENV)/installed-dev ## Lint, types, arrows between rooms, sizes, generated docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/size.py
	$(BIN)/python tools/docs.py --check

format: $(VENV)/installed-dev ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

size: $(VENV)/installed-dev ## Show lines by room against their budgets
	$(BIN)/python tools/size.py

docs: $(VENV)/installed-dev ## Write the generated reference pages
	$(BIN)/python tools/docs.py

clean: ## Remove the environment and what tools left behind
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache src/*.egg-info

# Where the environment is not sound, what was installed into it does not count.
ifeq ($(shell { $(IS_SOUND); } >/dev/null 2>&1 && echo yes),)
$(VENV)/torch: unsound
endif
.PHONY: unsound
unsound:

$(VENV)/torch: constraints.txt
	@"$(PYTHON)" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "error: $(if $(PYTHON),$(PYTHON) is not Python >= 3.11 with the venv module,no Python >= 3.11 with the venv module was found)" >&2; \
		echo "hint: install one (on Debian: python3 and python3-venv), or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@{ $(IS_SOUND); } >/dev/null 2>&1 || { rm -rf $(VENV) && "$(PYTHON)" -m venv $(VENV) && echo '$(CURDIR)' >$(VENV)/place; }
	@PYTHON=$(BIN)/python TORCH_VERSION=$(TORCH_VERSION) TORCH_CPU_INDEX=$(TORCH_CPU_INDEX) bash tools/install_torch.sh
	@touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@
