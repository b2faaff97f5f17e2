# `make demo` and `make test` set up everything they need themselves, in .venv, from the lock file.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check faults torture compat bench lock clean

demo: .venv/ready
	$(BIN)/blockout train --run runs/demo --restart

test: .venv/ready
	$(BIN)/python -m pytest --numprocesses auto

# Seeds faults into every room one by one; the suite must catch each (about an hour; ARGS=data/kept chooses).
faults: .venv/ready
	$(BIN)/python scripts/seed_faults.py $(ARGS)

# Kills, failing writes, damaged files and images: the standing attack. Writes its record.
torture: .venv/ready
	$(BIN)/python -m torture --record results/torture.json

# Says what it will download (gigabytes), then runs the tests on the oldest and newest versions we
# claim, in environments that it deletes again (an hour). Only the plan: make compat ARGS=--list
compat: .venv/ready
	$(BIN)/python scripts/compat.py $(ARGS)

# What a Blockout layer costs beside a plain one (ten minutes; leave the machine alone meanwhile).
# Writes record and plot, and what the docs quote of them. ARGS="--rows promised" takes three minutes,
# ARGS="--rows full" (every size, batch, k and kind of P) about twenty.
bench: .venv/ready
	$(BIN)/python benchmarks/kernels.py --out results/kernels.json --plot docs/figures/kernels.png $(ARGS)
	$(BIN)/python scripts/quote_kernels.py

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Writes the lock file anew: the newest releases that fit pyproject.toml, beside the pinned torch.
# The local part of torch's version (+cpu) is left out, so that every build of it fits.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet torch==2.13.0
	.venv-lock/bin/python -m pip install --quiet torch==2.13.0 --editable .[dev]
	.venv-lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf .venv .venv-lock build dist
