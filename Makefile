# Two commands do everything: `make lab` and `make generate PROMPT="…"`. `make help` lists the rest.
# The README gives the same steps as plain commands, for Windows.

PYTHON ?=
ARGS ?=
N ?= 5000
PROMPT ?= What is gravity?

BIN := .venv/bin
BOOT := $(or $(PYTHON),$(shell command -v python3 || command -v python),python3)
BOOTSTRAP = command -v "$(BOOT)" >/dev/null || { \
    echo 'minillm setup: error: Python 3.11 or newer is needed, and there is no $(BOOT) here' >&2; \
    exit 1; }; \
  "$(BOOT)" tools/bootstrap.py $(if $(PYTHON),--python "$(PYTHON)")

# The prompt reaches the shell through the environment, as it was typed: neither make nor the shell
# may read anything into its quotes, dollar signs or backticks.
export MINILLM_PROMPT := $(value PROMPT)
unexport PROMPT

# JupyterLab refuses to run as root unless told; containers are often root.
LAB_ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
.PHONY: help setup env lab generate chat test test-notebooks test-browser test-binder parity quality doctor bench-peers bench-gpu check format fuzz clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  PYTHON=python3.12    the Python that .venv is made with (3.11 or newer)'
	@echo '  ARGS="…"             more arguments for generate, chat, lab and the tests'

setup: ## create .venv, install the pinned packages and the kernel, fetch the model
	@$(BOOTSTRAP)

env: # the same without the model
	@$(BOOTSTRAP) --no-model

lab: setup ## open the course in JupyterLab
	@$(BIN)/python -m jupyterlab --ServerApp.root_dir=. $(LAB_ROOT) \
	  --LabApp.default_url=/lab/tree/notebooks/00_mental_model.ipynb $(ARGS)

generate: setup ## stream an answer: make generate PROMPT="What is gravity?"
	@$(BIN)/minillm generate $(ARGS) -- "$$MINILLM_PROMPT"

chat: setup ## talk to the model in the terminal
	@$(BIN)/minillm chat $(ARGS)

test: setup ## run the whole suite: unit, parity, packaging, and every notebook under nbval
	@$(BIN)/python -m pytest $(ARGS)

test-notebooks: setup ## each notebook in three forms: as is, without vector instructions, with one thread
	@$(BIN)/python -m pytest -m "slow or forms" tests/notebooks/test_notebooks.py $(ARGS)

test-browser: setup ## each notebook in JupyterLab in headless Chromium, which it installs on Debian
	@$(BIN)/python tools/browser.py
	@$(BIN)/python -m pytest -m browser tests/browser $(ARGS)

test-binder: setup ## Binder's environment from its own files, and the notebooks in it (minutes)
	@$(BIN)/python -m pytest -m binder tests/packaging/test_binder.py $(ARGS)

parity: setup ## the table of differences from transformers, family by family (minutes)
	@$(BIN)/python tools/parity.py $(ARGS)

quality: setup ## what fewer bits cost: bytes, perplexity and KL of each way to quantize (minutes)
	@$(BIN)/python tools/quality.py $(ARGS)

doctor: env ## what this machine has, and which engine would run
	@$(BIN)/minillm doctor $(ARGS)

bench-peers: setup ## speed beside llama.cpp and transformers, into docs/benchmarks.md (compiles llama.cpp)
	@$(BIN)/python tools/bench_peers.py $(ARGS)

bench-gpu: env ## speed on an NVIDIA GPU beside transformers, on random weights
	@$(BIN)/python tools/bench_gpu.py $(ARGS)

check: env ## ruff, mypy and the notebook check (under a minute)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python tools/typecheck.py
	@$(BIN)/python -m minillm.course check

format: env ## put code and notebooks into the project's format
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

fuzz: setup ## load N damaged models, which takes minutes: make fuzz N=5000
	@MINILLM_FUZZ_N=$(N) $(BIN)/python -m pytest tests/fuzz -s $(ARGS)

clean: ## remove .venv and everything that was built (the model stays in its cache)
	rm -rf .venv build dist *.egg-info minillm/kernels/cpu/_library.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
