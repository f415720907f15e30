# Everything happens in a virtual environment of its own, .venv, made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test quick lint rows sanitize learn tasks atari bench clean

$(READY): pyproject.toml setup.py constraints.txt $(wildcard cavalcade/*/*.c cavalcade/*/*.h)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,jax,numpy,atari,box2d,minigrid,minatar,mujoco,dm-control,compression,ray,record,wandb,mlflow,dev]'
	@touch $@

demo: $(READY)
	@rm -rf runs/demo
	$(BIN)/cavalcade train impala CartPole-v1 --runtime process --actors 2 --steps 500000 --target 475 --seed 1 --out runs/demo
	$(BIN)/cavalcade evaluate runs/demo --episodes 100
	@echo "the curve is runs/demo/curve.png, the policy runs/demo/policy; see it play: $(BIN)/cavalcade play runs/demo"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2

# what needs neither processes nor training
QUICK := tests/test_axes.py tests/test_tree.py tests/test_imports.py tests/ops tests/networks/test_activations.py \
	tests/experience/test_adders.py tests/programs tests/table/test_table.py tests/table/test_limiter.py tests/table/test_draws.py \
	tests/table/test_rows.py tests/table/test_mixture.py tests/envs/test_spaces.py tests/envs/test_masks.py \
	tests/envs/test_modes.py tests/records/test_curves.py tests/records/test_comparison.py
quick: $(READY)
	$(BIN)/ruff check .
	$(BIN)/pytest -n 2 $(QUICK)

rows: $(READY)
	CAVALCADE_ALL_ROWS=1 $(BIN)/pytest -n 2 tests/architectures/test_rows.py tests/runs/test_steps.py

# the table's core with checks of every access and every overflow, against the list of the property tests
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined
sanitize: $(READY)
	CFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" $(BIN)/python setup.py build_ext --inplace --force --quiet
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 $(BIN)/pytest \
		tests/table/test_table.py tests/table/test_draws.py tests/table/test_model.py; \
	status=$$?; $(BIN)/python setup.py build_ext --inplace --force --quiet; exit $$status

# queues of runs: what is done is skipped, what was cut off goes on
learn: $(READY)
	$(BIN)/python benchmarks/learn.py --parallel 2
	$(BIN)/python benchmarks/hindered.py

tasks: $(READY)
	$(BIN)/python benchmarks/tasks.py --parallel 2

atari: $(READY)
	$(BIN)/python benchmarks/atari.py --parallel 2

bench: $(READY)
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/table.py
	$(BIN)/python benchmarks/runtimes.py
	$(BIN)/python benchmarks/central.py
	$(BIN)/python benchmarks/solve.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/vector.py

clean:
	rm -rf $(VENV) runs build *.egg-info
