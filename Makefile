# Two commands: `make quickstart` shows word order being learned, `make test` runs every check.
# A GPU machine: make gpu (in the environment it has), or make test TORCH=torch
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TRANSFORMERS ?= transformers==5.24.0
MARK ?= not slow and not gpu
WORKERS ?= 2

BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: help install quickstart test lint pytest test-all mutations test-floor format docs cards model-cards clean benchmark speed gpu notebooks

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(INSTALLED): pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TRANSFORMERS)" -e ".[dev,docs,lint]"
	touch $@

install: $(INSTALLED) ## a virtual environment with everything

quickstart: $(INSTALLED) ## train two tiny encoders on real sentences, with and without word order
	$(BIN)/hf-posenc compare --plan quick -o quickstart

test: lint pytest ## lint, types and tests

lint: $(INSTALLED) ## ruff, mypy and import-linter alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

pytest: $(INSTALLED) ## the tests alone, and the examples in docstrings
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "$(MARK)"
	$(BIN)/python -m pytest --doctest-modules hf_posenc

test-all: MARK = not gpu
test-all: test ## the slow tests too

mutations: $(INSTALLED) ## plant faults one by one, and see that the tests notice each
	$(BIN)/python tests/mutate.py

test-floor: ## the tests with the lowest version of every dependency
	test -x .venv-floor/bin/python || $(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-floor/bin/uv pip compile --quiet --no-deps --resolution lowest-direct --extra lora --extra plots \
		pyproject.toml -o .venv-floor/lowest.txt
	.venv-floor/bin/uv pip install --quiet --python .venv-floor/bin/python -c .venv-floor/lowest.txt -e ".[dev]"
	.venv-floor/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "$(MARK)"

benchmark: $(INSTALLED) ## speed of this machine against transformers' encoders; on a GPU where there is one
	$(BIN)/python -m model_cards.benchmark -o runs/benchmark.json

speed: $(INSTALLED) ## measure anew what model_cards/speed.md shows, without serving: its own commands, half an hour
	grep '^python -m model_cards.benchmark' model_cards/speed.md | grep -v serving | while read -r line; do $(BIN)/$$line || exit 1; done
	$(BIN)/python -m model_cards.make_pages

gpu: ## on a GPU machine with torch and transformers, nothing is installed: its tests, speed, and targets as pass or fail
	$(PYTHON) tests/gpu.py

format: $(INSTALLED) ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## the site, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(INSTALLED) ## run the tutorials anew, and keep them with their output; needs the weights of MiniLM
	$(BIN)/python -m model_cards.make_notebooks

cards: model-cards

model-cards: $(INSTALLED) ## the model cards, and the tables in README, docs and speed page, from the code and the committed results
	$(BIN)/python -m model_cards.make_cards
	$(BIN)/python -m model_cards.make_pages

clean: ## remove what the commands made
	rm -rf .venv .venv-floor runs build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
