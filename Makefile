# Two commands: `make run` and `make test`. Each sets up what it needs on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test quick install check lint docs bench chaos clean

run: $(VENV)/run.stamp
	$(BIN)/bongsu serve --demo

# Without compiled files every process that the tests start would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

# Six at a time, because many of them wait; each with servers of its own. A file's tests stay together, and the longest files
# begin first (tests/support/long_runs.py).
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 6 $(SIDE_BY_SIDE)

# For the edit loop, about a minute: SQLite, and no other server or process.
quick: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --quick -n 4 $(SIDE_BY_SIDE)

install: $(VENV)/dev.stamp

check: lint test

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Pages that are generated. A test fails when one is not up to date.
docs: $(VENV)/dev.stamp
	$(BIN)/python -m bongsu.store.schema.document > docs/SCHEMA.md

# The tests that kill and break and those of random schedules, with many more seeds and longer faults: about an hour.
chaos: $(VENV)/dev.stamp
	CHAOS_SEEDS=30 CHAOS_MEMBERS=200 CHAOS_FAULT_SECONDS=60 $(BIN)/python -m pytest tests/chaos tests/deliver/test_killed_dispatchers.py tests/decide/test_killed_workers.py tests/desk/test_killed_cancels.py \
		tests/live/test_schedules.py tests/live/test_instances.py tests/live/test_ghosts.py tests/chat/test_socket_instances.py tests/chat/test_killed_push.py \
		tests/ingress/rabbitmq/test_killed_rabbitmq.py tests/ingress/relay/test_killed_relay.py tests/decide/test_bulk.py tests/decide/test_shared_keys.py tests/decide/test_digest_machine.py tests/store/messages/test_counts.py tests/store/members/test_channels.py \
		tests/store/outbox/test_event_machine.py tests/store/deliveries/test_delivery_machine.py \
		tests/store/inbox/test_inbox_machine.py tests/store/desk/test_cancel_machine.py tests/counters/test_machine.py \
		tests/api/test_document_fuzz.py tests/api/test_request_fuzz.py tests/deliver/channels/email/test_hostile_mails.py

bench: $(VENV)/bench.stamp
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "bongsu needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing, about half a minute …"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing, about a minute …"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/run.stamp

$(VENV)/bench.stamp: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@
