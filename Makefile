# Brume: `make run` plans and trains the quick start, `make check` runs all tests. Both install what is
# missing (Debian, apt) and build first.
#
#   SAN=address|undefined|thread   check under a sanitizer, in a build folder of its own
#   NATIVE=OFF                     portable binaries instead of ones for this processor
#   UNITY=OFF                      a module's files one by one: quicker after a change, slower from scratch
#   PREFIX=DIR                     where `make install` puts the program (/usr/local)

MAKEFLAGS += --no-print-directory

SAN    ?=
NATIVE ?= ON
UNITY  ?= ON
PREFIX ?= /usr/local
BUILD  := build$(if $(SAN),-$(SAN))
JOBS   := $(shell nproc)

PACKAGES := g++ cmake ninja-build pkg-config clang-format libopenmpi-dev openmpi-bin libhdf5-dev hdf5-tools \
  libglpk-dev libdnnl-dev libtrilinos-kokkos-dev libtomlplusplus-dev libcli11-dev nlohmann-json3-dev \
  libyaml-cpp-dev libfmt-dev libspdlog-dev libhwloc-dev libxxhash-dev libonig-dev libutf8proc-dev \
  libarchive-dev libsentencepiece-dev libgtest-dev
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

# Open MPI refuses to start for root unless told twice.
ifeq ($(shell id -u),0)
  export OMPI_ALLOW_RUN_AS_ROOT := 1
  export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

# What sanitizers can say something about: ranks as threads of one process for `thread`, all unit
# tests and those on two MPI ranks for the others.
TESTS_thread    := -L local
TESTS_address   := -L 'unit|two_ranks'
TESTS_undefined := -L 'unit|two_ranks'

# `make fuzz`: libFuzzer comes with Clang.
FUZZ_SECONDS  ?= 20
FUZZ_CLANG    ?= 16
FUZZ_PACKAGES := clang-$(FUZZ_CLANG) libclang-rt-$(FUZZ_CLANG)-dev libomp-$(FUZZ_CLANG)-dev

.PHONY: all program deps deps-slurm deps-pack configure run check fuzz golden-update perf figures format format-check install dist-binary clean

all: configure
	cmake --build $(BUILD) -j $(JOBS)

# Without tests and benchmarks, which take most of the time.
program: configure
	cmake --build $(BUILD) -j $(JOBS) --target brume

deps:
	@command -v apt-get >/dev/null || { echo "deps: no apt here; CMake looks for the site's packages"; exit 0; }; \
	missing=; for p in $(PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then echo "deps: all packages are there"; exit 0; fi; \
	echo "deps: installing$$missing"; $(SUDO) apt-get update -q && \
	DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -q -y --no-install-recommends $$missing

# What `ctest -L slurm` runs on, besides.
deps-slurm: PACKAGES += slurmctld slurmd slurm-client slurm-wlm-plugins
deps-slurm: deps

# What packs a build with its libraries.
deps-pack: PACKAGES += patchelf
deps-pack: deps

configure: deps
	cmake -S . -B $(BUILD) $$(test -f $(BUILD)/CMakeCache.txt || ! command -v ninja >/dev/null || echo -G Ninja) \
	  -DBRUME_NATIVE=$(NATIVE) -DBRUME_SANITIZE=$(SAN) -DCMAKE_INSTALL_PREFIX=$(PREFIX) \
	  -DCMAKE_UNITY_BUILD=$(UNITY) -DCMAKE_UNITY_BUILD_BATCH_SIZE=0

# The project's own text is what the quick start learns from.
run: program
	$(BUILD)/brume import tokens -o data --valid 0.1 README.md Makefile CMakeLists.txt src inc regression perf inputs jobs
	mpirun -q -n 4 --oversubscribe $(BUILD)/brume run inputs/quickstart.toml --resume none

# Tests on an emulated device are built for this alone. A test that mostly waits uses one of two slots per core.
check: format-check all
	$(if $(SAN),,cmake --build $(BUILD) -j $(JOBS) --target emulation)
	cd $(BUILD) && ctest --output-on-failure -j $(shell expr 2 \* $(JOBS) + 1) $(if $(SAN),$(TESTS_$(SAN)),-LE slow)

# Each kind of file that others give, damaged by libFuzzer for FUZZ_SECONDS.
fuzz: PACKAGES += $(FUZZ_PACKAGES)
fuzz: deps
	cmake -S . -B build-fuzz $$(test -f build-fuzz/CMakeCache.txt || ! command -v ninja >/dev/null || echo -G Ninja) \
	  -DCMAKE_C_COMPILER=clang-$(FUZZ_CLANG) -DCMAKE_CXX_COMPILER=clang++-$(FUZZ_CLANG) \
	  -DBRUME_SANITIZE=fuzzer-no-link,address,undefined -DBRUME_NATIVE=OFF -DBRUME_CUDA=OFF \
	  -DCMAKE_UNITY_BUILD=$(UNITY) -DCMAKE_UNITY_BUILD_BATCH_SIZE=0
	cmake --build build-fuzz -j $(JOBS) --target fuzz
	regression/fault/fuzz.sh build-fuzz/regression/fuzz $(FUZZ_SECONDS) $(JOBS)

# Rewrites the expected plans; git shows what changed.
golden-update: all
	cd $(BUILD) && GOLDEN_UPDATE=1 ctest -L golden --output-on-failure

perf: all
	$(BUILD)/perf/perf_kernels
	$(BUILD)/perf/perf_step
	$(BUILD)/perf/perf_generation
	test ! -x $(BUILD)/perf/perf_on_paper || $(BUILD)/perf/perf_on_paper
	$(BUILD)/perf/perf_pipeline
	$(BUILD)/perf/perf_mist_measured
	$(BUILD)/perf/perf_published
	for ranks in 1 2 4; do mpirun -n $$ranks --oversubscribe --bind-to none $(BUILD)/perf/perf_overlap; done
	for ranks in 1 2; do mpirun -n $$ranks --bind-to none $(BUILD)/perf/perf_prediction; done
	for ranks in 2 4; do mpirun -n $$ranks --oversubscribe --bind-to none $(BUILD)/perf/perf_plans schedules; done
	for ranks in 1 2; do mpirun -n $$ranks --bind-to none $(BUILD)/perf/perf_plans contexts; done
	mpirun -n 2 --bind-to none $(BUILD)/perf/perf_plans optimizers
	for ranks in 1 2; do mpirun -n $$ranks --bind-to none $(BUILD)/perf/perf_checkpoint; done
	mpirun -n 2 --bind-to none $(BUILD)/perf/perf_plans alternatives
	for nodes in 1 8 128; do $(BUILD)/brume plan perf/decks/llama-70b.toml --set cluster.nodes=$$nodes | grep ^search; done

# The pictures of pages: a plan, and benchmark results from perf/data.
figures: all
	mkdir -p inputs/figures
	regression/figures.sh $(BUILD)/brume $(BUILD)/perf/perf_figures inputs/figures

SOURCES = $(wildcard $(shell git ls-files -co --exclude-standard '*.cpp' '*.hpp'))
format:
	clang-format -i $(SOURCES)
# Other versions see it differently.
format-check: deps
	@if clang-format --version 2>/dev/null | grep -q 'version 14'; then \
	  clang-format --dry-run -Werror $(SOURCES); else echo "format-check: skipped, no clang-format 14 here"; fi

install: program
	cmake --install $(BUILD)

# brume.tar.gz runs where nothing but glibc is: the program for any x86-64, its libraries, Open MPI, decks, job templates.
dist-binary: deps-pack
	@$(MAKE) program BUILD=build-dist NATIVE=OFF
	jobs/pack.sh build-dist brume.tar.gz

clean:
	rm -rf build build-address build-undefined build-thread build-fuzz build-dist brume.tar.gz
