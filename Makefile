# make quickstart    install and train the embedded default to success: a few minutes on two CPU cores, no GPU
# make test          install everything and run the tests
# make simulators    install the environments of RoboTwin (1 GB) and of tabletop on the GPU, without which their tests are skipped
# Also: lint, e2e, bench, clean. PYTHON=python3.12 picks an interpreter; PIP_ARGS goes to pip, for instance
# PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for torch without CUDA libraries.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=
BENCH ?= overlap virtual_rl_vla3 virtual_hybrid virtual_scaling

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
QUICK := . plugins/simulators/tabletop plugins/models/tiny plugins/algorithms/ppo plugins/schedulers/sync
MANIFESTS := setup.cfg pyproject.toml constraints.txt $(wildcard plugins/*/*/setup.cfg)

# Environments of simulators that run in interpreters of their own.
export RLVLA_SIMULATORS ?= $(abspath $(VENV))/simulators

.PHONY: quickstart test simulators e2e lint format bench clean
.NOTPARALLEL:

quickstart: $(VENV)/.quickstart
	$(BIN)/rlvla train examples/tiny_tabletop_ppo_sync_cpu.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not e2e and not gpu" $(PYTEST_ARGS)

simulators: $(VENV)/.dev
	$(BIN)/rlvla simulators install robotwin
	$(BIN)/rlvla simulators install tabletop

e2e: $(VENV)/.dev
	$(BIN)/python -m pytest -m "e2e and not gpu" --timeout=900 $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell core plugins examples tests README.md

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	@for one in $(BENCH); do echo "== $$one"; $(BIN)/python benchmarks/$$one.py || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage

# ---- set-up, once; again when a manifest changes ---------------------------------------------------------------------

$(VENV)/.made:
	@.ci/system
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "rlvla needs Python 3.11 or later; this is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade -c constraints.txt pip "setuptools>=77" wheel
	@touch $@

$(VENV)/.quickstart: $(VENV)/.made $(MANIFESTS)
	@echo "installing into $(VENV): some minutes, torch is large"
	$(PIP) install -q --no-build-isolation -c constraints.txt $(PIP_ARGS) -e ".[train]" $(patsubst %,-e %,$(filter-out .,$(QUICK)))
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(MANIFESTS) requirements-dev.txt tests/requirements-no-deps.txt .ci/vulkan
	@PYTHON=$(PYTHON) .ci/vulkan
	@echo "installing everything into $(VENV): some minutes, torch and the simulators' assets are large"
	$(PIP) install -q --no-build-isolation -c constraints.txt $(PIP_ARGS) -r requirements-dev.txt
	$(PIP) install -q --no-deps -r tests/requirements-no-deps.txt
	@touch $@ $(VENV)/.quickstart
