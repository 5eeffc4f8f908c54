# make demo            set everything up, run the main job on the embedded default, print verdict and report
# make demo FAULT=…    the same with a fault injected into the engine: mlp-scale, kv-slot, … (docs/faults.md)
# make demo-s3         two runs with caches of their own that share goldens through a real S3 server
# make test            set everything up, run all tests
PYTHON ?= python3
FAULT ?=
OUTPUT ?= runs/demo$(if $(FAULT),-$(FAULT))
PYTEST_ARGS ?=

.PHONY: setup demo demo-s3 test test-fast test-runs test-parts lint types clean

setup:
	@$(PYTHON) tools/setup_environments.py

demo: setup
	@.venv/bin/assay run --output $(OUTPUT) $(if $(FAULT),--fault $(FAULT)) || exit $$?

demo-s3: setup
	@.venv/bin/python benchmarks/golden_demo_s3.py

test: setup
	.venv/bin/python -m pytest -m "not slow" -n 2 $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory -j2 test-runs test-parts

# the slow tests, in two halves that use a core each: whole runs, and everything else
test-runs:
	.venv/bin/python -m pytest -m slow tests/e2e $(PYTEST_ARGS)

test-parts:
	.venv/bin/python -m pytest -m slow --ignore tests/e2e $(PYTEST_ARGS)

test-fast: setup
	.venv/bin/python -m pytest -m "not slow" -n 2 $(PYTEST_ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

types: setup
	.venv/bin/mypy

clean:
	rm -rf .venv .venv-engine runs build
