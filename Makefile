# make help says what there is. Every target makes .venv when it is missing and brings it up to date.
# The stamps in .venv:
#   made       no install is under way. Removed while pip writes, so an interrupted .venv is made again.
#   has-EXTRA  the extra is installed as pyproject.toml and constraints.txt now ask. Extras add up.
#   linked     the package files the editable install links to, one by one: a new file needs a new link.

PYTHON ?= python3
JOBS ?= 2
PY := .venv/bin/python
PIP := PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install -qq --no-compile --constraint constraints.txt
# strict: type checkers see the folders that pyproject.toml maps into the package
EDITABLE := --no-build-isolation --config-settings editable_mode=strict --editable
LISTING = { pwd; ls -d build/__editable__.*; find core callbacks launch report bridges cli -name '*.py' -o -name py.typed -o -name '*.npz' -o -name '*.css' -o -name '*.js' | LC_ALL=C sort; } 2>&1
# fastai asks for spaCy, torchvision and a server for notebooks, of which its training loop needs nothing; Syne Tune for
# the XGBoost for GPUs, whose files stand where those of the one for CPUs do
BARE_dev := fastai fastcore fastdownload fastprogress fasttransform plum-dispatch beartype python-fasthtml \
	beautifulsoup4 soupsieve itsdangerous python-multipart oauthlib \
	syne-tune dill stable-baselines3 gymnasium farama-notifications
BARE_bench := syne-tune dill
# one install at a time, when two targets are started at once
LOCK := $(if $(shell command -v flock),flock .)
environment = +@$(LOCK) $(MAKE) --no-print-directory --silent environment-$(1)

# bytecode is written on first use (--no-compile): installing takes half the time
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all gpu lint docs figures gallery film notebooks bench claims dist newest lowest clean always style types with-frameworks without-frameworks
ifndef BESIDE
.NOTPARALLEL:
endif
.SECONDARY:

help:
	@echo 'make demo      tune a small network on real digits and watch runs being stopped, with reasons'
	@echo 'make test      formatting, lint, types and the quick tests (JOBS=2 at a time), the same each time'
	@echo 'make test-all  the same with the slow tests, and properties tried on new examples, and on more'
	@echo 'make gpu       the tests that need a CUDA device'
	@echo 'make lint      formatting, lint and types'
	@echo 'make docs      the site of documentation, in build/docs: open index.html'
	@echo 'make bench     the benchmarks; DATA=folder of recorded curves and costs, BENCH=one script'
	@echo 'make claims    runs again what the pages claim, where that takes a minute; DATA=folder likewise'
	@echo 'make dist      the wheel and the source distribution, in dist/; make newest and make lowest try'
	@echo '               the newest and the oldest versions it allows, with the Python of PYTHON=python3.14'
	@echo 'make clean     remove .venv and everything that was built'

demo:
	$(call environment,demo)
	@$(PY) examples/01_lightning.py $(ARGS)

lint: style types

style:
	$(call environment,dev)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .

types:
	$(PY) -m mypy --strict -p haltune -p examples -m docs.figures.drawing $(patsubst docs/site/%.py,-m %,$(wildcard docs/site/*.py))

docs: export NO_MKDOCS_2_WARNING = 1
docs:
	$(call environment,docs)
	@$(PY) -m mkdocs build --strict --quiet
	@echo 'build/docs/index.html'

# draws the figures of the documentation again, by haltune's own code
figures:
	$(call environment,docs)
	@for script in $(filter-out docs/figures/drawing.py,$(wildcard docs/figures/*.py)); do $(PY) $$script || exit 1; done

# runs the programs of the gallery again, and writes its page
gallery:
	$(call environment,dev)
	$(PY) docs/site/gallery.py
	$(PY) -m ruff format --quiet docs/gallery

# runs the program of the README again, and draws its moving picture
film:
	$(call environment,dev)
	$(PY) docs/site/film.py

# runs the notebooks of the documentation again, and keeps the output of their cells
notebooks:
	$(call environment,dev)
	$(PY) docs/site/cells.py

test test-all bench claims: export OMP_NUM_THREADS ?= 1
test: CHOSEN = -m 'not slow'
test-all: CHOSEN = --hypothesis-profile=fresh
test test-all: style
ifdef ARGS
	@$(MAKE) --no-print-directory types
	$(PY) -m pytest -q -rs -n $(JOBS) $(CHOSEN) $(ARGS)
else
	@$(MAKE) --no-print-directory -j3 BESIDE=1 CHOSEN="$(CHOSEN)" with-frameworks without-frameworks types
endif

# what needs a CUDA device, in one process, without the network
gpu:
	$(call environment,dev)
	$(PY) -m pytest -q -m gpu tests/callbacks $(ARGS)

# Torch, scikit-learn, Ray and what builds on them take longer to import than most tests: one process does, next to all
# others. Those collect all other tests, and import none (tests/test_habits.py). They take a file each, so that what its
# tests share is made once, and the files of tests/conftest.py's LONGEST first.
# Keras is tested in processes of its own, which the others start.
FRAMEWORKS := $(wildcard tests/callbacks/test_*.py) tests/callbacks/lightning tests/callbacks/transformers tests/foreign \
	tests/launch/test_distributed_program.py tests/test_pages.py tests/test_docs.py tests/test_readme.py \
	tests/test_docstrings_of_doors.py tests/study/test_plain_loops.py tests/study/test_retries.py tests/test_live_trainings.py \
	tests/ray_tune tests/launch/ray/test_keeper.py tests/syne_tune tests/optuna/test_wandb_sweeps.py \
	tests/laws/test_any_lightning.py tests/laws/test_any_trainer.py tests/laws/test_any_torch_loop.py
# these have tests for a program without a framework, too
BOTH := tests/study/test_best_model.py tests/study/test_learners.py tests/study/test_numbers.py \
	tests/study/test_starting_again.py tests/utils/test_signals.py
with-frameworks:
	$(PY) -m pytest -q -rs $(CHOSEN) $(FRAMEWORKS) $(BOTH)
without-frameworks:
	$(PY) -m pytest -q -rs -n $(JOBS) --dist loadfile --no-loadscope-reorder $(CHOSEN) $(patsubst %,--ignore=%,$(FRAMEWORKS) $(BOTH))

bench claims: export HALTUNE_DATA := $(if $(DATA),$(abspath $(DATA)),$(HALTUNE_DATA))
bench: BENCH ?= $(sort $(shell grep -l '^if __name__' benchmarks/speed/*.py)) \
	$(sort $(shell grep -l '^if __name__' benchmarks/search/*.py benchmarks/papers/*.py))
bench:
	$(call environment,bench)
	@test -n "$$HALTUNE_DATA" || echo 'No data folder: benchmarks on recorded runs cannot run. Name it: make bench DATA=folder'
	@test -z "$$HALTUNE_DATA" || test -d "$$HALTUNE_DATA" || { echo "No such data folder: $$HALTUNE_DATA"; exit 2; }
	@failed=; for script in $(BENCH); do \
		printf '\n== %s\n' "$$script"; \
		$(PY) "$$script" || failed="$$failed $$script"; \
	done; \
	test -z "$$failed" || { printf '\nNot completed (each says why above):%s\n' "$$failed"; exit 1; }

# which numbers of the pages still come out so: benchmarks/README.md
claims:
	$(call environment,bench)
	@$(PY) benchmarks/claims.py --jobs $(JOBS) $(ARGS)

dist:
	$(call environment,dev)
	rm -rf dist
	@$(PY) -m build --no-isolation --outdir dist . >/dev/null && ls dist

# as installed, each in an environment of its own: with the newest versions, and with the lowest that pyproject.toml allows
NEWEST := build/newest/bin/python
newest lowest: export OMP_NUM_THREADS ?= 1
# they have no driver of PostgreSQL
newest lowest: export HALTUNE_NEEDS_POSTGRES =
newest:
	rm -rf build/newest && $(PYTHON) -m venv build/newest
	$(NEWEST) -m pip install -qq '.[report,watch]' scikit-learn httpx pytest pytest-xdist hypothesis packaging
	$(NEWEST) -m pytest -q -n $(JOBS) --dist loadfile -m 'not slow' $(or $(ARGS),$(FRAMEWORKS:%=--ignore=%))

OLDEST := build/lowest/bin/python
lowest: dist
	rm -rf build/lowest && $(PY) -m venv build/lowest
	$(OLDEST) -m pip install -qq --constraint lowest.txt "$$(ls dist/*.whl)[report,watch]" scikit-learn httpx pytest hypothesis packaging
	$(OLDEST) -m pytest -q -m 'not slow' $(or $(ARGS),tests/gp tests/space tests/log tests/store/test_stores.py tests/study/test_study.py \
		tests/cli tests/report/figures tests/report/watch/test_watch.py)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

environment-%: .venv/has-% .venv/linked ;

.venv/made:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "haltune needs Python 3.11: make PYTHON=...")'
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(PIP) setuptools
	touch $@

# a signal leaves no .venv/made; an error that pip itself reports (no network, say) keeps what there was
.venv/has-%: pyproject.toml constraints.txt | .venv/made
	echo "Installing what '$*' needs into .venv (some minutes when nothing is cached)"
	trap 'exit 130' INT TERM; rm -f .venv/made .venv/linked; \
	{ $(PIP) $(EDITABLE) '.[$*]' $(if $(BARE_$*),&& $(PIP) --no-deps $(BARE_$*)); } || { code=$$?; test $$code -ge 128 || touch .venv/made; exit $$code; }; \
	$(LISTING) > .venv/linked; touch .venv/made $@

.venv/linked: always
	$(LISTING) | cmp -s - $@ || { $(PIP) --no-deps $(EDITABLE) . && $(LISTING) > $@; }
