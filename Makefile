# One-word entry points; everything real is in tools/, CMakeLists.txt and CMakePresets.json.
# ./quickstart and ./test are the same for a machine that has no make yet.
#   make quickstart [MINUTES=15]   set up, build, train a small MoE on this machine's C++ headers
#   make build                     set up, build build/hocket; keeps the configuration of a build folder
#   make test [TESTS=PATTERN]      set up, build, run all tests, or those whose name matches
#   make unit                      the same for the tests that take about a minute together
#   make sim                       build-sim/hocket with graph, check and simulate alone; no root
#   make asan | tsan               build and test under sanitizers, in build-asan and build-tsan
#   make asan-files                the same as asan of what reads files alone, in some minutes
#   make format | format-check     write, or check, the layout that .clang-format describes
#   make clean
JOBS ?= $(shell nproc)
MINUTES ?=
TESTS ?=
.PHONY: build sim test-build test unit quickstart setup asan asan-files tsan format format-check clean

setup:
	tools/setup.sh

build: setup
	cmake $(if $(wildcard build/CMakeCache.txt),-B build,--preset release -DHOCKET_TESTS=OFF -DHOCKET_BENCH=OFF) $(CMAKE_ARGS)
	cmake --build build -j $(JOBS) --target hocket

sim:
	tools/setup.sh --sim
	cmake --preset sim $(CMAKE_ARGS)
	cmake --build build-sim -j $(JOBS) --target hocket

test-build:
	tools/setup.sh --tests
	cmake --preset release -DHOCKET_TESTS=ON -DHOCKET_BENCH=ON $(CMAKE_ARGS)
	cmake --build build -j $(JOBS)

test: test-build
	ctest --test-dir build -j $(JOBS) --output-on-failure $(if $(TESTS),-R '$(TESTS)')

unit:
	tools/setup.sh --tests
	cmake --preset release -DHOCKET_TESTS=ON $(CMAKE_ARGS)
	cmake --build build -j $(JOBS) --target hocket hocket_tests
	ctest --test-dir build -j $(JOBS) --output-on-failure -L unit

asan asan-files tsan:
	tools/setup.sh --tests
	cmake --preset $@ $(CMAKE_ARGS)
	cmake --build build-$@ -j $(JOBS)
	ctest --preset $@ -j $(JOBS)

quickstart: build
	MINUTES=$(MINUTES) tools/quickstart.sh

format:
	tools/setup.sh --format
	git ls-files '*.h' '*.cc' | xargs .venv/bin/clang-format -i

format-check:
	tools/setup.sh --format
	git ls-files '*.h' '*.cc' | xargs .venv/bin/clang-format --dry-run -Werror

clean:
	rm -rf build build-*
