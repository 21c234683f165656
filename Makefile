# One-word entry points; everything real is in tools/, CMakeLists.txt and CMakePresets.json.
#   make quickstart [MINUTES=15]   set up, build, train a small MoE on this machine's C++ headers
#   make build                     set up, build build/hocket
#   make test                      set up, build, run all tests
#   make sim                       build-sim/hocket with graph, check and simulate alone; no root
#   make format | clean
JOBS ?= $(shell nproc)
MINUTES ?=
.PHONY: build sim test quickstart setup format clean

setup:
	tools/setup.sh

build: setup
	cmake --preset release $(CMAKE_ARGS)
	cmake --build build -j $(JOBS) --target hocket

sim:
	tools/setup.sh --sim
	cmake --preset sim $(CMAKE_ARGS)
	cmake --build build-sim -j $(JOBS) --target hocket

test:
	tools/setup.sh --tests
	cmake --preset release $(CMAKE_ARGS)
	cmake --build build -j $(JOBS)
	ctest --test-dir build -j $(JOBS) --output-on-failure

quickstart: build
	MINUTES=$(MINUTES) tools/quickstart.sh

format:
	git ls-files '*.h' '*.cc' | xargs clang-format -i

clean:
	rm -rf build build-*
