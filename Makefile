# The commands of the project; each builds the environment it needs.
#   make run     train, measure, and write a chorale: runs/chorales/report.html
#   make test    every test, one case of most with checked shapes; of the costly tests some cases,
#                others with each commit
#   make thorough
#                the same with all cases of all tests
#   make oldest  adapted models of the oldest transformers that there are adaptations for
#   make quick   in about two minutes, what a change breaks most likely
#   make check   lint, types, doctests
#   make bench   time and memory of the op against its rivals, and what follows from them
#                (hours on 2 cores; nothing else should run)
#   make gpu     on a machine with a GPU, in 25 minutes: tests, checks and time of the triton
#                backend; PYTHON needs torch, triton, jaxtyping, pytest and hypothesis, and
#                nothing is installed
#   make docs    the documents and the reference of public names, as a site: site/index.html
#   make parity  agreement with other implementations: docs/parity.md
#   make wheel   sdist and wheel, with what the compiled kernel needs: dist/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Of most packages few modules are ever imported, which compiles them: pip need not compile all. Python must
# keep what it compiled then, or each of the hundreds of processes of the tests does it again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL := $(PIP) -c $(VENV)/constraints.txt

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 8 --dist worksteal

# Judges of tests/parity whose own requirements (librosa, torchvision) the tests do without.
ORACLES := espnet self-attention-cv

# Judges of tests/adapters that transformers must not find: in a folder apart, as tests/apart.py says.
APART := timm torchvision segment-anything nemo-toolkit speechbrain wrapt monai enformer-pytorch \
  borzoi-pytorch torchaudio funasr kornia piper-tts coqui-tts spandrel ultralytics \
  mmengine addict termcolor mmcv-lite mmdet mmsegmentation mmpretrain mmaction2 s3prl fairseq2

# Of the same folder, one that is built with torch at hand, for hours where it sees a GPU or is told of one.
UNCOMPILED := natten

# The oldest transformers whose models are adapted, beside the one that the constraints pin.
OLDEST := 5.20.2

.PHONY: setup run test oldest thorough quick check bench gpu docs parity wheel clean

setup: $(VENV)/.complete

# The constraints pin torch; a torch that is in $(VENV) already, a newer one or one for a GPU, stays.
# torch comes before relpos, whose kernel is compiled with torch's headers.
$(VENV)/.complete: pyproject.toml constraints.txt setup.py $(wildcard csrc/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "relpos needs Python 3.11 or newer, got " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing relpos and what it needs into $(VENV) (a few minutes the first time)"
	@if own=$$($(BIN)/python -c 'import torch; print("torch|triton" if torch.version.cuda else "torch")' 2>/dev/null); \
	then grep -Ev "^($$own)==" constraints.txt; else cat constraints.txt; fi > $(VENV)/constraints.txt
	$(INSTALL) torch
	$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps $(ORACLES)
	$(INSTALL) --no-deps --upgrade --target $(VENV)/apart $(APART)
	NATTEN_CUDA_ARCH= CUDA_VISIBLE_DEVICES= $(INSTALL) --no-deps --no-build-isolation --upgrade --target $(VENV)/apart $(UNCOMPILED)
	@touch $@

run: setup
	$(BIN)/relpos music compare $(ARGS)

# A process for each core, of one thread each. Shapes are the same in most parameters of a test: one
# of them for each backend has them checked, and only in the second run, where that is possible.
test: setup
	$(PYTEST) --leave-cases 1 $(ARGS)
	$(PYTEST) --cases 1 --jaxtyping-packages=relpos,relpos_tasks,beartype.beartype $(ARGS)

# Adapted models of the oldest transformers: all but what its originals cannot, or call otherwise.
oldest: setup
	test -f $(VENV)/transformers-$(OLDEST)/.complete || $(PIP) --upgrade --no-deps \
	  --target $(VENV)/transformers-$(OLDEST) transformers==$(OLDEST)
	@touch $(VENV)/transformers-$(OLDEST)/.complete
	PYTHONPATH=$(VENV)/transformers-$(OLDEST) $(PYTEST) -o filterwarnings= \
	  tests/adapters/test_families.py tests/adapters/test_in_use.py \
	  tests/adapters/test_attn_implementation.py \
	  -m "not slow and not other_library" -k "not checkpoint and not (static and bloom)" $(ARGS)

thorough: setup
	$(PYTEST) --thorough $(ARGS)
	$(PYTEST) --thorough --cases 2 --jaxtyping-packages=relpos,relpos_tasks,beartype.beartype $(ARGS)

quick: setup
	$(PYTEST) --cases 1 -m "not slow" $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q --doctest-modules src

bench: setup
	$(BIN)/python -m benchmarks.attention $(ARGS)
	$(BIN)/python -m benchmarks.half
	$(BIN)/python -m benchmarks.decoding
	$(BIN)/python -m benchmarks.generation
	$(BIN)/python -m benchmarks.small_calls
	$(BIN)/python -m benchmarks.local
	$(BIN)/python -m benchmarks.distributed
	$(BIN)/python -m benchmarks.hour_of_speech
	$(BIN)/python -m benchmarks.adapters
	$(BIN)/python -m benchmarks.attn_implementation
	$(BIN)/python -m benchmarks.choice
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.steps
	$(BIN)/python -m benchmarks.tables

gpu:
	$(PYTHON) -m scripts.gpu $(ARGS)

parity: setup
	$(BIN)/python -m benchmarks.parity

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "wrote site/index.html"

wheel: setup
	$(BIN)/python -m scripts.build_wheel

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
	rm -f $(addprefix src/relpos/ops/native/,_kernel*.so missing.txt)
