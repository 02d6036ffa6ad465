# day0: a thin front on Meson and Ninja. `make help` lists what there is.
BUILD     ?= build
CC        ?= gcc
MESON_OPTIONS ?=

.PHONY: all setup adapt test lint sanitize tsan fuzz bench demo references clean help

all: setup ## build build/day0 (the default)
	@ninja -C $(BUILD) --quiet

setup: ## install missing packages and configure the build (quiet when there is nothing to do)
	@tools/setup.sh build
	@test -f $(BUILD)/build.ninja || { meson setup $(BUILD) $(MESON_OPTIONS) > $(BUILD).setup.log 2>&1 && rm -f $(BUILD).setup.log || { cat $(BUILD).setup.log; exit 1; }; }

adapt: all ## run the main job on the model that ships in demo/
	@$(BUILD)/day0 adapt demo/model --reference demo/reference.safetensors --picture-reference demo/pictures.safetensors --questions demo/questions.json

test: ## everything a change must pass; ends with one line of counts
	@tools/setup.sh test
	@$(MAKE) --no-print-directory setup
	@tools/run_tests.sh $(BUILD) unit kcheck parity fuzz e2e

lint: ## layers, lengths, headers, format, banned calls, mutable globals
	@tools/setup.sh lint
	@$(MAKE) --no-print-directory all
	@tools/lint.sh $(BUILD)

sanitize: ## the fast part of the suite under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup.sh test
	@test -f build-asan/build.ninja || meson setup build-asan -Db_sanitize=address,undefined -Db_lundef=false --buildtype=debugoptimized > /dev/null
	@ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 tools/run_tests.sh build-asan unit fuzz

tsan: ## the threaded part of the suite under ThreadSanitizer
	@tools/setup.sh test
	@test -f build-tsan/build.ninja || meson setup build-tsan -Db_sanitize=thread -Db_lundef=false --buildtype=debugoptimized > /dev/null
	@TIMEOUT_MULTIPLIER=6 tools/run_tests.sh build-tsan unit

fuzz: ## every fuzz target for FUZZ_SECONDS (60) with libFuzzer under ASan and UBSan
	@tools/setup.sh fuzz
	@tools/fuzz.sh $${FUZZ_SECONDS:-60}

bench: all ## kernels (and BENCH_MODELS=...: whole models) against this machine's limits; figures go to bench/NOTES.md by hand
	@ninja -C $(BUILD) --quiet bench/bench_kernels bench/bench_model
	@$(BUILD)/bench/bench_kernels
	@for m in $(BENCH_MODELS); do $(BUILD)/bench/bench_model $$m || exit 1; done

demo: ## train the demo model anew (PyTorch from PyPI, in a virtual environment outside the tree)
	@tools/venv.sh torch
	@$$(tools/venv.sh --print)/bin/python tools/train_demo.py demo
	@$$(tools/venv.sh --print)/bin/python tools/eval_demo.py demo --write

references: all ## record the references of the demo and of the tiny models (tests/parity)
	@tools/venv.sh torch
	@$$(tools/venv.sh --print)/bin/python tools/record_reference.py demo/model -o demo/reference.safetensors
	@$$(tools/venv.sh --print)/bin/python tools/reference_conversation.py demo/model demo/conversation.json demo/pictures/q01.png demo/pictures/q02.png -o demo/pictures.safetensors
	@$$(tools/venv.sh --print)/bin/python tools/reference.py --build $(BUILD)
	@$$(tools/venv.sh --print)/bin/python tools/reference_k3.py --build $(BUILD)
	@$$(tools/venv.sh --print)/bin/python tools/reference_activations.py --build $(BUILD)
	@$$(tools/venv.sh --print)/bin/python tools/reference.py --build $(BUILD) --halves
	@$$(tools/venv.sh --print)/bin/python tools/reference_pictures.py --build $(BUILD)
	@$$(tools/venv.sh --print)/bin/python tools/reference_k3_pictures.py --build $(BUILD)
	@$$(tools/venv.sh --print)/bin/python tools/reference_rope.py

clean: ## remove build directories
	@rm -rf build build-asan build-tsan build-fuzz

help: ## this list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
