# make demo: the main job on embedded real data; make test: the whole test suite; make soak: 20 kills.
# All build .venv. make test-oldest: the suite on the oldest versions, in .venv-oldest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOLO_LEARN := solo-learn==1.0.2
OLDEST_PYTHON ?= python3.10
OLDEST := .venv-oldest
# A process a core; the tests of a file share what is costly to make.
PYTEST := -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

.PHONY: demo test test-oldest soak lint types check install clean

install: $(VENV)/.installed

# solo-learn comes without the pins of its time, which no current torch can meet.
$(VENV)/.installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps $(SOLO_LEARN)
	touch $@

demo: install
	$(BIN)/python -W ignore -m benchmarks.demo --out demo-results

test: install
	$(BIN)/python $(PYTEST) $(PYTEST_ARGS)

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python $(PYTEST) $(PYTEST_ARGS)

$(OLDEST)/.installed: setup.cfg constraints-oldest.txt
	$(OLDEST_PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable ".[dev]"
	$(OLDEST)/bin/python -m pip install --quiet --no-deps $(SOLO_LEARN)
	touch $@

# A run is killed 20 times; the report goes into benchmarks/results/.
soak: install
	$(BIN)/python -W ignore -m benchmarks.soak --kills 20

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

check: lint types test

clean:
	rm -rf $(VENV) $(OLDEST) demo-results
