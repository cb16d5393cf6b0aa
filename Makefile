# Two commands: `make demo` shows it working, `make test` proves it. `make help` lists the rest.

PYTHON ?= python3
# Extra arguments for pip, e.g. PIP_ARGS="--index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=
# make demo DATA=stories.txt, DATA=roneneldan/TinyStories
DATA ?= sample
# Any further notebook parameters: make demo PARAMETERS="units=2048 seed=1"
PARAMETERS ?=
# 0 takes as many as the size of the text asks for.
STEPS ?= 0
# make faults ONLY="'script/*' '*/xla'"
ONLY ?= '*'

GPU := .venv-gpu
TPU := .venv-tpu
DEMO := outputs/demo-$(notdir $(basename $(DATA)))-$(STEPS)
export TOKENIZERS_PARALLELISM := false

.PHONY: help demo test slow test-gpu test-tpu notebooks docs gallery lint lock versions faults planted tpu clean
.DEFAULT_GOAL := help

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(GPU)/.installed ## run the TinyStories notebook headless (DATA=sample, a path or a hub id; STEPS=0 follows from its size)
	$(GPU)/bin/python -m helpers.batch notebooks/tinystories_reservoir.ipynb --output-dir '$(DEMO)' \
	    'data_source=$(DATA)' max_steps=$(STEPS) $(PARAMETERS)

# Several test files at a time; those marked slow are further cases of what a quicker one shows.
PYTEST := -m pytest --dist loadfile --no-loadscope-reorder tests
SELECT ?= not slow

test: lint test-gpu test-tpu ## everything but a few slow cases, with both sets of requirements (under half an hour on two cores)

slow: ## the slow cases
	$(MAKE) --no-print-directory test-gpu test-tpu SELECT=slow

test-gpu: $(GPU)/.installed ## the tests with requirements-gpu.txt
	OMP_NUM_THREADS=1 $(GPU)/bin/python $(PYTEST) --numprocesses 3 -m '$(SELECT)'

test-tpu: $(TPU)/.installed ## what torch_xla has a part in, on 8 virtual XLA devices, and what Google's TPU compiler makes of it
	OMP_NUM_THREADS=1 $(TPU)/bin/python $(PYTEST) --numprocesses 2 -m 'not once and $(SELECT)'

notebooks: $(GPU)/.installed ## build notebooks/*.ipynb from notebooks/source and helpers
	$(GPU)/bin/python tools/notebooks.py

docs: $(GPU)/.installed ## write the tables and figures of README.md and docs/ from docs/results
	$(GPU)/bin/python tools/pages.py

gallery: $(GPU)/.installed ## execute the notebooks on this machine and show them in docs/gallery (hours)
	$(GPU)/bin/python tools/gallery.py

lint: $(GPU)/.installed ## ruff and mypy; notebooks and docs are what their sources give
	$(GPU)/bin/ruff check .
	$(GPU)/bin/ruff format --check .
	$(GPU)/bin/mypy
	$(GPU)/bin/python tools/notebooks.py --check
	$(GPU)/bin/python tools/pages.py --check
	$(GPU)/bin/python tools/gallery.py --check

lock: $(GPU)/.installed ## requirements-gpu.lock and requirements-tpu.lock: every package with its version and hashes, by uv
	$(GPU)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) uv
	for set in gpu tpu; do $(GPU)/bin/uv pip compile --quiet --generate-hashes --python-version 3.12 \
	    requirements-$$set.txt --output-file requirements-$$set.lock || exit 1; done

versions: $(GPU)/.installed ## the core tests at the ends of our version ranges and at Colab's (SETS="floor colab"; slow)
	$(GPU)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) uv
	$(GPU)/bin/python tools/versions.py $(SETS)

# Where the first call was cut off, the second goes on: each cell is written to docs/results/faults.json when it is known.
faults: $(GPU)/.installed $(TPU)/.installed ## every way to disturb a run, against an undisturbed one (ONLY='script/*'; slow)
	$(GPU)/bin/python tools/faults.py --only $(ONLY)

planted: $(GPU)/.installed ## sixty small bugs in a copy of the repository: which of them the quick tests notice (COUNT=12; slow)
	OMP_NUM_THREADS=1 $(GPU)/bin/python tools/planted.py $(COUNT)

tpu: $(TPU)/.installed ## the TPU notebooks' steps by Google's TPU compiler, without a TPU (ONLY="'legal*/v5e-1'"; slow)
	$(TPU)/bin/python benchmarks/tpu_compiler.py $(ONLY)

clean: ## remove all environments (outputs stay)
	rm -rf $(GPU) $(TPU) .versions

# A stamp, so that the second call reuses the environment and a changed requirement renews it.
define environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, $(PYTHON) is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	@echo 'Building $(@D) once, which takes some minutes.'
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) $(addprefix -r ,$^)
	@touch $@
endef

.venv-%/.installed: requirements-%.txt tests/requirements.txt
	$(environment)

$(TPU)/.installed: tests/requirements-tpu-compiler.txt
