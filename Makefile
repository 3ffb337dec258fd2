# The commands of the project. `make` alone lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.base
STAMP  := $(VENV)/.installed
WARM   := $(VENV)/.compiled

# Extras the default tests need; everything else is installed by whoever wants it.
EXTRAS := dev,export,tui

# Triton, and a numpy that its interpreter works with: beside the packages of the environment.
# The interpreter of triton 3.9 refuses masks that it has joined itself.
KERNEL_PACKAGES := triton==3.6.0 numpy==2.2.6
KERNELS         := $(VENV)/kernels
KERNELS_STAMP   := $(KERNELS)/.installed
KERNELS_LOG     := $(VENV)/kernels.log
KERNEL_TESTS    := tests/kasmina/kernels

# Fast tests that guard the fixed names and contracts; add a file here when it is written.
GUARDRAIL_TESTS := \
	tests/test_import_isolation.py \
	tests/meta/test_factored_action_contracts.py \
	tests/simic/test_vectorized.py \
	tests/simic/training/test_entropy_annealing.py \
	tests/simic/rewards/escrow/test_escrow_wiring.py \
	tests/simic/test_reward_normalizer_checkpoint.py \
	tests/simic/test_gpu_preload_batch_size.py \
	tests/scripts/test_train.py

# Processes that share the tests, a file each at a time; JOBS: those of one target.
TEST_JOBS ?= 2
JOBS      ?= $(TEST_JOBS)

# One thread: on these small tensors a second one costs more than it brings.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pytest keeps its compiled tests; without them every process of a run compiles them for 10 seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run grow test test-modules test-lab test-kernels test-browser test-slow guardrail lint docs dist bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(WARM) ## make .venv and install esper and the lab in it (again only when the pins change)

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# Esper alone, which is enough to run it: half a minute less than with the tools of the tests.
$(BASE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "setup: installing esper into $(VENV) at the versions of constraints.txt"
	@$(BIN)/python -m pip install -qq --no-compile -c constraints.txt -e .
	@touch $@

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt | $(BIN)/python
	@echo "setup: installing esper[$(EXTRAS)] and the lab into $(VENV) at the versions of constraints.txt"
	@$(BIN)/python -m pip install -qq --no-compile -c constraints.txt -e '.[$(EXTRAS)]' -e lab
	@touch $(BASE) $@

# Compiles what commands load; pip would compile every file it installs, for another half minute.
$(WARM): $(BASE)
	@$(BIN)/python -c 'import pyarrow, scipy.stats, sklearn.datasets' & \
		$(BIN)/python -c 'import esper.scripts.train.learner, esper.compare.run, esper.growing.run, torch._dynamo' && \
		wait $$!
	@touch $@

# Rounds of the main job: 3 and their judgement take 2 minutes on two Neoverse-N1 cores, 5 two and a half.
RUN_ROUNDS := 3

run: $(WARM) ## train a controller on the digits data, then judge it (within 3 minutes on two cores)
	$(BIN)/esper train ppo --preset digits_quick --device cpu --rounds $(RUN_ROUNDS)

grow: $(WARM) ## grow a small CNN on the digits data (within a minute), with a report
	$(BIN)/esper grow --demo

lint: $(STAMP) ## ruff, mypy and the import contracts
	$(BIN)/ruff check src tests scripts lab
	$(BIN)/ruff format --check src tests scripts lab
	$(BIN)/mypy --num-workers $(JOBS)
	$(BIN)/lint-imports --no-logo

test: ## lint beside the tests, all but the slow ones, kernels first
	@$(MAKE) --no-print-directory --jobs=$(TEST_JOBS) $(STAMP) $(KERNELS_STAMP)
	@$(MAKE) --no-print-directory --jobs=$(TEST_JOBS) JOBS=1 lint test-modules

test-modules: $(WARM) test-kernels
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --ignore $(KERNEL_TESTS)

test-lab: setup ## the tests of the lab, all but the slow ones
	cd lab && ../$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

test-slow: setup ## the slow tests of esper and the lab alone; those that need an extra say so and skip
	$(BIN)/python -m pytest -m slow
	cd lab && ../$(BIN)/python -m pytest -m slow
	@ESPER_KERNEL_EXAMPLES=all $(MAKE) --no-print-directory test-kernels KERNEL_FLAGS="-m ''"

$(KERNELS_STAMP): constraints.txt | $(BIN)/python
	@mkdir -p $(KERNELS)
	@$(BIN)/python -m pip install -qq --no-deps --no-compile --upgrade --target $(KERNELS) $(KERNEL_PACKAGES) \
		2> $(KERNELS_LOG) || true
	@touch $@

test-kernels: $(STAMP) $(KERNELS_STAMP) ## kernels of our own against torch, by Triton's interpreter
	@test -d $(KERNELS)/triton || \
		echo "Triton's kernels are not tested: it cannot be installed here, see $(KERNELS_LOG)"
	@TRITON_INTERPRET=1 PYTHONPATH=$(KERNELS) $(BIN)/python -m pytest -q -W ignore::RuntimeWarning \
		-n $(if $(filter 1,$(JOBS)),0,$(JOBS)) $(KERNEL_FLAGS) $(KERNEL_TESTS)

# The browser is the system's, for Playwright's own cannot be downloaded everywhere.
BROWSER_STAMP := $(VENV)/.browser
BROWSER_TESTS := tests/karn/web/test_browser.py tests/karn/web/test_growth_in_browser.py tests/karn/report/test_accessible.py
NODE          := $(VENV)/node
NODE_PACKAGES := axe-core@4.14.0 html-validate@9.7.1
DRIVER        := import tomllib; print(*(p for p in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["test-extra"] if p.startswith("playwright")))

$(BROWSER_STAMP): $(STAMP)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ apt-get update && apt-get install --yes --no-install-recommends chromium; } > $(VENV)/chromium.log 2>&1 || \
		{ echo "Chromium is missing and cannot be installed, see $(VENV)/chromium.log: install the package chromium"; exit 1; }
	@$(BIN)/python -m pip install -qq -c constraints.txt "$$($(BIN)/python -c '$(DRIVER)')"
	@npm install --silent --no-audit --no-fund --prefix $(NODE) $(NODE_PACKAGES)
	@touch $@

test-browser: setup $(BROWSER_STAMP) ## the dashboard and reports in Chromium, which is installed if it is missing
	ESPER_BROWSER=required ESPER_NODE_MODULES=$(CURDIR)/$(NODE)/node_modules \
		$(BIN)/python -m pytest -m '' $(BROWSER_TESTS)

guardrail: setup ## the fast tests of names and contracts
	$(BIN)/python -m pytest -m "" $(GUARDRAIL_TESTS)

# The tools of the extra `docs` alone: docstrings are read, not imported, so no torch is needed.
DOCS_VENV  := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed
EXTRA_DOCS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])

$(DOCS_STAMP): pyproject.toml constraints.txt
	@echo "docs: installing mkdocs into $(DOCS_VENV) at the versions of constraints.txt"
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install -qq -c constraints.txt $$($(PYTHON) -c '$(EXTRA_DOCS)')
	@touch $@

docs: $(DOCS_STAMP) ## build the documentation into site/ and check its links
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict --clean
	$(DOCS_VENV)/bin/python scripts/check_site.py site
	@echo "open site/index.html; with search: $(PYTHON) -m http.server --directory site"

# Tools that only building needs; none of them is installed beside the package.
DIST_TOOLS := build==1.6.1 twine==7.0.0
DIST_VENV  := .venv-dist
WHEEL_VENV := .venv-wheel

dist: ## build wheels and sdists, check them, and try esper's in an empty environment, then the lab's
	rm -rf dist $(DIST_VENV) $(WHEEL_VENV)
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install -qq $(DIST_TOOLS)
	$(DIST_VENV)/bin/python -m build --outdir dist .
	$(DIST_VENV)/bin/python -m build --outdir dist lab
	$(DIST_VENV)/bin/twine check --strict dist/*
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip install -qq -c constraints.txt dist/esper_morph-*.whl
	cd dist && ../$(WHEEL_VENV)/bin/python -I ../scripts/try_wheel.py
	$(WHEEL_VENV)/bin/python -m pip install -qq -c constraints.txt dist/esper_lab-*.whl
	cd dist && ../$(WHEEL_VENV)/bin/esper bench digits_impaired --policies table --episodes 1 --quiet
	rm -rf $(DIST_VENV) $(WHEEL_VENV)

bench: setup ## measure how fast populations step
	$(BIN)/python scripts/benchmark_hot_path.py

clean: ## remove .venv, caches and build output
	rm -rf $(VENV) $(DOCS_VENV) $(DIST_VENV) $(WHEEL_VENV) site .site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests scripts lab -name __pycache__ -type d -prune -exec rm -rf {} +
