# `make demo` and `make test` work on a fresh clone, each alone; everything lives in .venv.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long bench lint format docs generate lock clean

RUN := .venv/bin/python -m

help:  ## show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## install everything into .venv, from the lock (a second time: at once)
	@scripts/setup

demo: setup  ## a first minute: an embedded PostgreSQL streamed into files
	@.venv/bin/runnel demo

test: setup  ## unit, contract, end-to-end and fault tests
	$(RUN) pytest tests -m "not long" -n auto --dist worksteal

test-long: setup  ## the rest of the matrix: server versions, random seeds, soak
	$(RUN) pytest tests -m long -n auto --dist worksteal

bench: setup  ## measure this machine, beside pg_recvlogical
	.venv/bin/runnel bench

lint: setup  ## format, style, types
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy

format: setup  ## bring the code into its format
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

generate: setup  ## write the generated pages: configuration reference, JSON Schema, commands
	.venv/bin/python scripts/reference.py

docs: setup  ## build the site into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet
	@echo "site/index.html"

lock: setup  ## choose the newest versions that pyproject.toml allows
	.venv/bin/uv pip compile pyproject.toml --upgrade --all-extras --group dev --universal \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --quiet --output-file requirements.lock

clean:  ## remove what was made here
	rm -rf .venv site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
