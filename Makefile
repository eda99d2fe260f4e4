# The first target to need it sets up .venv with the versions in constraints.txt, whose files' hashes are in locked/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
LINK := .paths/paceline
ARGS ?=
comma := ,
WAYS := serial,strategy=single,batch_size=64 bsp,sync=bsp ddp,strategy=torch_ddp asp,sync=asp \
  pipeline,strategy=pipeline,strategy.schedule=gpipe,hardware.workers=4
# What Python compiles is kept, whatever the environment says: else every process of the tests compiles all of it anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadgroup
SEED := 0
SEEDS := 3
STUDIES := digits_64 stragglers_scaling backup_workers local_sgd_period easgd_downpour gossip_topologies hogwild_sparse collectives_by_size collectives_by_workers collectives_hosts compression_digits compression_cnn compression_gpt error_feedback modes_by_network pipeline_schedules pipeline_staleness hybrids crossover low_bandwidth failures
# The columns of docs/experiments/NAME.csv: what is chosen, then what is measured.
CHOSEN_digits_64 := sync
CHOSEN_stragglers_scaling := sync,hardware.workers
CHOSEN_backup_workers := sync.backups
CHOSEN_local_sgd_period := partition,sync.period,batch_size
CHOSEN_easgd_downpour := sync,sync.period,sync.push
CHOSEN_gossip_topologies := sync
CHOSEN_hogwild_sparse := hardware.workers,sync
CHOSEN_collectives_by_size := collective,data.features
CHOSEN_collectives_by_workers := collective,hardware.workers
CHOSEN_collectives_hosts := collective,data.features
CHOSEN_compression_digits := compress,hardware.network.bandwidth
CHOSEN_compression_cnn := compress,hardware.network.bandwidth
CHOSEN_compression_gpt := compress,hardware.network.bandwidth
CHOSEN_error_feedback := compress,compress.error_feedback
CHOSEN_modes_by_network := sync,hardware.network.bandwidth
CHOSEN_pipeline_schedules := strategy.schedule,strategy.micro_batches
CHOSEN_pipeline_staleness := strategy.schedule,optimizer.lr
CHOSEN_crossover := model,strategy,workers
CHOSEN_hybrids := mesh,hardware.network.bandwidth,hardware.workers_per_host
CHOSEN_failures := failures.mtbf,sync
CHOSEN_low_bandwidth := sync,compress,sync.period,sync.parts.diloco.period
MEASURED := accuracy,time_to_accuracy_s,epochs_to_accuracy,step_ms,bytes_per_step,megabytes,staleness_mean,consensus_distance,dropped_gradients
MEASURED_local_sgd_period := $(MEASURED),rounds_to_accuracy
MEASURED_collectives_by_size := step_ms,communication_ms,bytes_per_step
MEASURED_collectives_by_workers := step_ms,communication_ms,bytes_per_step
MEASURED_collectives_hosts := step_ms,communication_ms,bytes_per_step
MEASURED_pipeline_schedules := step_ms,blocked,activations_mib,bytes_per_step
MEASURED_crossover := step_ms,compute_ms,bytes_per_step,activations_mib
MEASURED_hybrids := accuracy,time_to_accuracy_s,step_ms,compute_ms,communication_ms,waiting_ms,bytes_per_step
MEASURED_low_bandwidth := loss,accuracy,throughput_samples_per_s,bytes_per_step,megabytes,messages
MEASURED_failures := accuracy,time_to_accuracy_s,step_ms,worker_failures,lost_work_s,downtime_s,checkpoint_s,goodput
MEASURED_hogwild_sparse := updates_per_second,accuracy
JOBS_hogwild_sparse := 1  # it is timed
SEEDS_collectives_by_size := 1  # modelled times of a quiet network are alike for all seeds
SEEDS_collectives_by_workers := 1
SEEDS_collectives_hosts := 1
SEEDS_pipeline_schedules := 1
SEEDS_crossover := 1
SEEDS_hybrids := 1  # likewise; all layouts take as many steps
# Of the extras, those that the set-up installs: ray and quantized take 240 and 125 MB, for tests that are skipped without
EXTRAS := vision pandas tables images privacy datasets tensorboard mlflow figures postgres
SAMPLED = $(if $(SAMPLE),--sample $(SAMPLE) --seed $(SEED))
NONE_IS_FINE := || test $$? -eq 5  # pytest's status when ARGS leaves no test to run
PIP_HASHED := $(BIN)/python -m pip install --quiet --require-hashes --no-deps
# torch's CPU build is on an index of its own. These are the wheels of it that the tests ran with.
CPU_WHEELS := torch==2.13.0+cpu=6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_CONSTRAINT = $(CURDIR)/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow test-fault test-browser test-all mutations faults safeguards newest oldest check fix compare bench gpu gpu-wheels predictions experiments docs lock clean

help:  ## Show this help
	@awk -F':.*## ' '/^[a-z -]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  make train ARGS="sync=asp hardware.workers=2"   passes overrides; see paceline train --help'

setup: $(READY)  ## Create .venv with pinned dependencies

# Whether the torch that was installed wants libraries of CUDA
WANTS_CUDA := import sys; from importlib.metadata import requires; \
  sys.exit(not any(each.startswith(("nvidia", "cuda", "triton")) and "extra" not in each for each in requires("torch")))

$(READY): pyproject.toml $(wildcard locked/*.txt) | $(LINK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "paceline needs Python >= 3.11; $(PYTHON) is older. Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 3; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments. Try: apt-get install python3-venv"; exit 3; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_HASHED) --requirement locked/build.txt
	$(PIP_HASHED) --requirement locked/torch-cpu.txt 2>/dev/null || $(PIP_HASHED) --requirement locked/torch.txt
	$(PIP_HASHED) --no-build-isolation --requirement locked/requirements.txt
	! $(BIN)/python -c '$(WANTS_CUDA)' || $(PIP_HASHED) --requirement locked/cuda.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The rooms are folders of this one, and are imported as paceline.ROOM: type checkers and editors find them here.
$(LINK):
	@mkdir -p $(@D)
	@ln -sfn .. $@

train: $(READY)  ## Train on digits with two workers; ARGS="..." passes overrides
	$(BIN)/paceline train $(ARGS)

test: $(READY)  ## Run the fast tests (ARGS="..." goes to pytest)
	$(PYTEST) -m "not slow and not fault and not browser" -n 4 $(ARGS) $(NONE_IS_FINE)

costs: $(READY)  ## Measure what each test of the fast part costs (see tests/budget.py)
	rm -f .costs
	$(PYTEST) -m "not slow and not fault and not browser" -n 2 --costs .costs
	$(BIN)/python tests/budget.py .costs
	rm .costs

test-slow: $(READY)  ## Run the slow tests; SAMPLE=0.1 SEED=7 for a tenth of them
	$(PYTEST) -m "slow and not browser" -n 2 $(SAMPLED) $(ARGS) $(NONE_IS_FINE)

test-fault: $(READY)  ## Run the tests that kill, freeze and starve, but for the slow ones
	$(PYTEST) -m "fault and not slow and not browser" -n 3 $(SAMPLED) $(ARGS) $(NONE_IS_FINE)

test-browser: $(READY)  ## Run the tests that open a report in a browser
	$(PYTEST) -m "browser" $(SAMPLED) $(ARGS) $(NONE_IS_FINE)

test-all: $(READY)  ## Run all four parts, whichever fails
	$(MAKE) --keep-going --jobs=1 test test-slow test-fault test-browser

faults: $(READY)  ## Kill, stop, corrupt, starve, attack and fuzz runs, and count what was right (ARGS="--share 0.1")
	cd tests && PYTHONPATH=.:engine ../$(BIN)/python -m faults $(ARGS)

mutations: $(READY)  ## Break the code in a copy, one edit at a time, and see tests fail (ARGS="local_sgd")
	$(BIN)/python tests/mutations.py $(ARGS)

safeguards: $(READY)  ## Take each safeguard out of a copy of the tree: make faults must notice
	cd tests && PYTHONPATH=.:engine ../$(BIN)/python -m faults.safeguards $(ARGS)

newest oldest:  ## Run the contract tests of compat/ with the newest (lowest) versions that there are (are taken)
	test -x .venv-$@/bin/python || $(PYTHON) -m venv .venv-$@
	PIP_CONSTRAINT= .venv-$@/bin/python -m pip install --quiet --upgrade pip
	.venv-$@/bin/python tests/bounds.py $@ > .venv-$@/requirements.txt
	# alone first: deepspeed is built with it
	PIP_CONSTRAINT= .venv-$@/bin/python -m pip install --quiet --upgrade "$$(grep '^torch' .venv-$@/requirements.txt)"
	PIP_CONSTRAINT= .venv-$@/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager \
	    --requirement .venv-$@/requirements.txt --group dev
	PIP_CONSTRAINT= .venv-$@/bin/python -m pip install --quiet --no-deps --editable .
	.venv-$@/bin/python -m pip list | grep -iE '^(torch|deepspeed|optuna|typer|hydra-core|wandb) '
	.venv-$@/bin/python -m pytest tests/compat $(ARGS)

check: $(READY)  ## Format, lint and types, without editing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

fix: $(READY)  ## Format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

compare: $(READY)  ## Train Fashion-MNIST five ways and compare (the README's table)
	@for way in $(WAYS); do \
	  name=fashion-$${way%%,*}; test -d runs/$$name || \
	  $(BIN)/paceline train --name $$name experiment=fashion_cnn $$(echo $${way#*,} | tr , ' ') || exit $$?; \
	done
	$(BIN)/paceline compare --baseline fashion-serial --format markdown $(foreach way,$(WAYS),fashion-$(firstword $(subst $(comma), ,$(way))))

bench: $(READY)  ## Time paceline against what a user would pick instead
	$(BIN)/python -m benchmarks $(ARGS)

gpu: $(READY)  ## Measure one CUDA card, in two slices of under nine minutes (ARGS="--slice 1")
	@$(BIN)/python -m benchmarks.gpu $(ARGS)

gpu-wheels: $(READY)  ## Collect in gpu-wheels/ what a machine with a card and no index lacks (ARGS="--python 3.11")
	@$(BIN)/python -m benchmarks.gpu_wheels $(ARGS)

predictions: $(READY)  ## Score the cost model on published runs: ARGS=FOLDER has runs.csv and hardware.csv
	$(BIN)/python -m benchmarks.published $(ARGS)

# ARGS are studies for this target alone; pytest's, as in `make test ARGS=a.py::test_b`, are no names of targets.
experiments: $(addprefix study-,$(or $(if $(filter experiments,$(MAKECMDGOALS)),$(ARGS)),$(STUDIES)))  ## Run the studies and draw them (ARGS=local_sgd_period SEEDS=1)

# Each file sweeps/studies/NAME*.yaml is a sweep; together they are the table and the picture of NAME.
study-%: $(READY)
	@for file in sweeps/studies/$**.yaml; do \
	  name=$$(basename $$file .yaml); test -d runs/$$name && again=--resume || again=; \
	  $(BIN)/paceline sweep $$file tracking=none --seeds $(or $(SEEDS_$*),$(SEEDS)) --jobs $(or $(JOBS_$*),2) $$again || exit $$?; \
	done
	$(BIN)/paceline compare $(notdir $(basename $(wildcard sweeps/studies/$**.yaml))) --no-group --format csv \
	  --columns $(CHOSEN_$*),seed,modelled,$(or $(MEASURED_$*),$(MEASURED)) > docs/experiments/$*.new
	mv docs/experiments/$*.new docs/experiments/$*.csv
	$(BIN)/paceline compare docs/experiments/$*.csv --figure sweeps/studies/$*.yaml --png docs/experiments > /dev/null
	rm docs/experiments/*$*.pdf docs/experiments/*$*.svg

docs: $(DOCS_READY)  ## Draw the course's pictures and build the site in site/, which opens offline (ARGS=--serve serves it on this machine)
	@$(BIN)/python docs/hooks/pictures.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs $(if $(filter --serve,$(ARGS)),serve,build --strict --quiet)
	@$(if $(filter --serve,$(ARGS)),,$(BIN)/python docs/hooks/players.py site/players.html)
	@echo "the site: $(CURDIR)/site/index.html"

$(DOCS_READY): locked/docs.txt | $(READY)
	$(PIP_HASHED) --requirement locked/docs.txt
	@touch $@

lock: $(READY) $(DOCS_READY)  ## Write the installed versions to constraints.txt, and their files' hashes to locked/
	@{ echo "# Every version that the tests ran with. Renew: make lock"; \
	   $(BIN)/python -m pip freeze --all --exclude-editable | grep -vE '^(setuptools|wheel)=' | sed 's/+cpu$$//' | awk '!seen[$$0]++'; } > constraints.new
	@mv constraints.new constraints.txt
	test -x .venv-lock/bin/uv || { $(PYTHON) -m venv .venv-lock && PIP_CONSTRAINT= .venv-lock/bin/python -m pip install --quiet uv; }
	echo 'pip setuptools>=77' | tr ' ' '\n' > .venv-lock/build.in
	for group in dev docs; do .venv-lock/bin/uv pip compile --quiet --generate-hashes --universal --python-version 3.11 \
	    --no-header --no-annotate $(addprefix --extra ,$(EXTRAS)) --group pyproject.toml:dev --group pyproject.toml:$$group \
	    --constraint constraints.txt --output-file .venv-lock/$$group.txt pyproject.toml .venv-lock/build.in || exit $$?; done
	$(BIN)/python tests/locking.py .venv-lock/dev.txt .venv-lock/docs.txt $(CPU_WHEELS)

clean:  ## Remove .venv and caches (runs/ stays)
	rm -rf $(VENV) .venv-newest .venv-oldest .venv-lock build site dist *.egg-info .pytest_cache .ruff_cache .paths
