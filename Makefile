# Each target works alone from a fresh clone: it builds .venv itself, and a second run is quick.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))))
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test slow lint bench wheel clean

quickstart: .venv/core
	$(BIN)/sentsmith quickstart --output quickstart-output $(if $(wildcard quickstart-output/page.html),--overwrite)

test: .venv/dev
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

slow: .venv/dev
	$(BIN)/python -m pytest -m slow --numprocesses auto --maxprocesses 4

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/dev
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/embedding.py
	$(BIN)/python benchmarks/chunks.py
	$(BIN)/python benchmarks/caching.py
	$(BIN)/python benchmarks/jtcse.py
	$(BIN)/python benchmarks/guided_decoding.py --model ../shared/models/nli-lm-8m
	$(BIN)/python benchmarks/multicsr.py --triplets ../shared/data/nli/triplets_train.csv
	$(BIN)/python benchmarks/bellm.py --model ../shared/models/nli-lm-8m --triplets ../shared/data/nli/triplets_train.csv
	$(BIN)/python benchmarks/freeze.py --data-dir ../shared/data
	$(BIN)/python benchmarks/audit_planted.py --data-dir ../shared/data

# Builds a wheel and imports every module of it in an environment that holds nothing else of ours.
wheel: .venv/dev
	$(BIN)/python tools/check_wheel.py

clean:
	rm -rf .venv build dist quickstart-output

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/pip pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

.venv/dev: .venv/bin/pip pyproject.toml constraints.txt
	$(PIP) --editable '.[dev,search,hub,openvino]'
	touch .venv/core $@
