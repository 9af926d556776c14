# Everything runs in .venv, which the first target that needs it makes. `make PYTHON=python3.12 test` picks another Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT ?= demo-out
TRAIN_OUT ?= train-demo-out

.PHONY: help install demo train-demo test check lint types imports tests bench schema clean

help:
	@echo "make demo    build, estimate, export and run the tiny 3:1 KDA:MLA hybrid"
	@echo "make train-demo  train a tiny 3:1 hybrid on the text that is shipped, two minutes, export it and run it"
	@echo "make test    everything CI runs: ruff, ruff format, pyright, lint-imports, pytest"
	@echo "make bench   figures against peers, as ratios in one run (minutes; wants a quiet machine)"
	@echo "make schema  rewrite specs/archc-spec.schema.json and the tables of docs/{language,complexity,attention}.md"
	@echo "make clean   remove what the targets made"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo.py $(OUT)

train-demo: $(STAMP)
	$(BIN)/python examples/train.py $(TRAIN_OUT)

test: check

check: lint types imports tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

imports: $(STAMP)
	$(BIN)/lint-imports --no-cache

tests: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadscope --no-loadscope-reorder

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

schema: $(STAMP)
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/growth.py
	$(BIN)/python docs/attention_page.py

clean:
	rm -rf $(VENV) .genai-venv $(OUT) $(TRAIN_OUT) .pytest_cache .ruff_cache .hypothesis build dist
