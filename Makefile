# make lab    set up what is missing and open lesson 00 in JupyterLab
# make test   set up what is missing and run every check
# make train  the run of lesson 07, with a report in runs/

PYTHON = python3
# The ordinary torch for Linux is a CUDA build of several GB, so the CPU build
# is tried first. With a GPU: make lab TORCH_INDEX=
TORCH_INDEX = https://download.pytorch.org/whl/cpu
# Passed on: make lab LAB_ARGS=--no-browser, make test TEST_ARGS=tests/test_kl.py,
# make train TRAIN_ARGS="--beta 1 --folder runs/mine"
LAB_ARGS =
TEST_ARGS =
TRAIN_ARGS =

PY = .venv/bin/python
PIP = $(PY) -m pip install --quiet --disable-pip-version-check
TORCH = $$(grep '^torch==' requirements.txt)

.PHONY: lab test train record bench links clean

lab: .venv/lab-ready
	.venv/bin/jupyter lab notebooks/00_start_here.ipynb $(LAB_ARGS)

test: .venv/test-ready
	$(PY) -m pytest $(TEST_ARGS)

train: .venv/lab-ready
	$(PY) -m rlnb.training $(TRAIN_ARGS)

record: .venv/test-ready
	$(PY) tools/record.py

bench: .venv/test-ready
	$(PY) tools/bench.py

links: .venv/test-ready
	$(PY) tools/links.py

clean:
	rm -rf .venv build *.egg-info .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The `-ready` files say that a set-up went through to its end.
.venv/lab-ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	  "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "Setting up .venv; the first time this downloads about 300 MB."
	$(PYTHON) -m venv .venv
	@# An index that is out of reach costs seconds, then the ordinary one serves.
	@test -z "$(TORCH_INDEX)" || $(PIP) --index-url $(TORCH_INDEX) --no-deps \
	  --retries 1 --timeout 5 $(TORCH) 2>/dev/null || true
	$(PIP) -r requirements.txt -e .
	@# Once now, or the first picture comes with a warning that it takes long.
	@$(PY) -c 'import matplotlib.font_manager'
	@touch $@

.venv/test-ready: .venv/lab-ready requirements-test.txt requirements-trl.txt
	$(PIP) -r requirements-test.txt -r requirements-trl.txt
	@touch $@
