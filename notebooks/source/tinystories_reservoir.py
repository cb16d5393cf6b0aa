# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # A reservoir language model on TinyStories (GPU)
#
# Trains a language model whose recurrent part is **never trained**: a frozen, random echo-state network remembers the
# text, and only a readout learns to predict the next token. At the end you have validation loss, perplexity and bits per
# byte beside n-gram baselines and an equally large transformer, a story told by each, and a model to load elsewhere.
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU. **Run all** and wait. The
# TPU twin is `tinystories_reservoir_tpu.ipynb`; it has the same cells.
#
# {planned}
#
# Disconnected? Run all again: with the same `output_dir` it goes on from the last checkpoint, to the same weights.

# %% [markdown] tags=["tpu"]
# # A reservoir language model on TinyStories (TPU)
#
# Trains a language model whose recurrent part is **never trained**: a frozen, random echo-state network remembers the
# text, and only a readout learns to predict the next token. At the end you have validation loss, perplexity and bits per
# byte beside n-gram baselines and an equally large transformer, a story told by each, and a model to load elsewhere.
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips are used).
# Without one it warns and goes on with the GPU or the CPU. The first steps take long: XLA compiles them, once. The GPU
# twin is `tinystories_reservoir.ipynb`; it has the same cells.
#
# {planned}
#
# Disconnected? Run all again: with the same `output_dir` it goes on from the last checkpoint, to the same weights.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock wandb matplotlib

# %% [markdown]
# ## Parameters
#
# Zeros mean "what the recipe says". Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's
# secrets.

# %% tags=["parameters"]
# parameters: helpers.reservoir.parameters.ReservoirParameters

# %% [markdown]
# ## Check and look around
#
# Every parameter is checked before anything is downloaded, and the output folder is claimed for this run.

# %%
from helpers import parameters, run_folder, runtime, secrets, tables
from helpers.reservoir.parameters import ReservoirParameters

secrets.provide("HF_TOKEN")
params = parameters.check(ReservoirParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
print(machine)
folder = run_folder.claim("tinystories_reservoir", params)
print(f"output     {folder.resolve()}")

# %% [markdown]
# ## Data
#
# Exact duplicates are removed: no story is in both splits.

# %%
from helpers.reservoir.stories import load_stories

splits = load_stories(params.data_source, num_stories=params.stories_wanted, seed=params.seed)
run_folder.same_data(folder, splits.source)
counts = {"training stories": len(splits.train), "validation stories": len(splits.validation)}
tables.show([counts | {"duplicates removed": splits.duplicates_removed}], splits.source)
print(splits.train[0])

# %% [markdown]
# The same story as the model sees it: byte-level tokens, with an end-of-text token after every story. All go into one
# memory-mapped file, so that the full set trains on a machine with little RAM.

# %%
from helpers.reservoir import experiment
from helpers.reservoir.tokens import load_tokenizer

story_tokenizer, reason = load_tokenizer(params.tokenizer, splits.train, params.vocab_size, params.trim_vocabulary)
corpus = experiment.tokenise(splits, story_tokenizer, folder / "data")
counts = {"training tokens": len(corpus.train), "validation tokens": len(corpus.validation)}
tables.show([counts], reason)
print(story_tokenizer.convert_ids_to_tokens(story_tokenizer(splits.train[0])["input_ids"][:24]))

# %% [markdown]
# ## Model
#
# `frozen` weights are the reservoirs: drawn once from the seed, never touched again, so nothing is trained through time.
# `reservoirs` names them: the leaky **tanh** network is Jaeger's echo-state network; `+` puts a **delay** line (the last
# tokens exactly) or a **linear** reservoir (many speeds of forgetting) beside it, `|` stacks them. What they see of
# a token is its co-occurrence code, computed from the training text without any labels (`input_codes=0`: a random code).
# **Recall** proposes tokens of the recent text again where it looked as it does now; only how far to trust it is learned.
# `trainable` weights are all that is.

# %%
model = experiment.new_model(params, corpus)
print(model)
tables.show([model.parameter_counts()], "Weights")

# %% [markdown]
# ## What the reservoirs do before any training
#
# **Spectrum**: the eigenvalues of the tanh network lie inside the circle of the spectral radius asked for. **Washout**: two
# different initial states must end in the same trajectory (the echo-state property). **Memory**: how much of the token
# `lag` steps back a linear readout can still recall.

# %%
diagnostics, figure = experiment.diagnose(model, corpus, params.seed, folder / "figures" / "diagnostics.png")
tables.show([{"reservoir": name, **values} for name, values in diagnostics.items()])

# %% [markdown]
# ## Plan
#
# What will run, and why; then what it is expected to take. Memory is counted: the training step runs once on tensors
# without numbers. Without a `calibration.json` of this machine (`hardware_tuning` writes one) time is a datasheet's bound,
# on a CPU it is not known.

# %%
from helpers import plan as planner
from helpers.planning import forecast as forecasts
from helpers.reservoir.parameters import recipe
from helpers.reservoir.workload import workload

step = workload(model, params.reservoirs, params.sequence_length)
plan = planner.plan(
    recipe(params.sequence_length, len(corpus.train)),
    step,
    machine,
    batch_size=params.batch_size,
    learning_rate=params.learning_rate,
    max_steps=params.max_steps,
)
tables.show(plan.rows())

# %%
forecast = forecasts.here(step, plan, machine)
tables.show(forecast.rows())

# %% [markdown]
# ## Before training
#
# The Kneser-Ney trigram is the bar: a model that ends above it has learned no more than which token follows which two.
# `ridge` is the same reservoirs with the classic readout, linear regression in closed form.

# %%
trainer = experiment.new_trainer(model, corpus, params, plan, machine, folder)
before = experiment.evaluate(trainer, corpus)
baselines = experiment.baselines(corpus, trainer.eval_dataset)
baselines["ridge readout"] = experiment.ridge(model, corpus, trainer)
tables.show([{"model": name, **values} for name, values in {"untrained": before, **baselines}.items()])

# %% [markdown]
# ## Train
#
# Every block is read with the state that the story so far left: nothing in a reservoir is trained, so it is computed
# once, and blocks can still be shuffled. The best weights by validation loss are loaded at the end.

# %%
output = trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `mfu` is the share of the named datasheet peak that was used; a reservoir is a chain of
# small matrix products, so expect single digits.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. `compiles_after_warmup` and `host_syncs_per_step` must be 0: anything
# else means that shapes change or that values leave the chip at every step.

# %%
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
tables.show(forecast.beside(measured["train"]))

# %% [markdown]
# ## A transformer beside it
#
# The same batches through the same trainer, for a Llama of as many trained parameters. It sees every earlier token of a
# block exactly, and nothing before the block. Skip it with `compare_transformer=False`; `further_seeds=2` repeats both,
# without which a small difference means little.

# %%
from helpers.reservoir import comparison

rows = {params.seed: {"reservoir": comparison.row(trainer, corpus, params)}}
if params.compare_transformer:
    trainable = model.parameter_counts()["trainable"]
    transformer = comparison.train_transformer(
        params, corpus, plan, machine, trainable=trainable, output_dir=folder / "transformer"
    )
    rows[params.seed]["transformer"] = comparison.row(transformer, corpus, params)
rows |= comparison.further_seeds(params, corpus, plan, machine, folder)

# %% [markdown]
# ## After training
#
# The same measure on the same tokens; bits per byte does not depend on the tokeniser.

# %%
tables.show(comparison.table({"untrained": before, **baselines}, rows))
caveats = comparison.caveats(params.data_source, baselines, rows[params.seed])
print(caveats)
after = rows[params.seed]["reservoir"]
story = after["story"]
for name, values in rows[params.seed].items():
    print(f"\n--- {name}\n{values['story']}")

# %% [markdown]
# ## Loss against tokens and against seconds

# %%
figure = comparison.plot(
    rows[params.seed],
    {name: values["loss"] for name, values in baselines.items()},
    folder / "figures" / "loss.png",
    title=f"{len(splits.train)} stories, {after['trainable'] / 1e6:.1f}M trained parameters each",
)

# %% [markdown]
# ## Save, reload, compare
#
# The saved model must tell the same story as the one in memory (in half precision, which rounds products, it may not).
# Its code is saved beside the weights: where nothing but torch and transformers is installed, load it with
# `trust_remote_code=True`.

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer

trainer.save_model(str(folder / "model"))
reloaded = AutoModelForCausalLM.from_pretrained(folder / "model")
retold = experiment.tell(reloaded, AutoTokenizer.from_pretrained(folder / "model"), params)
same_story = retold == story
print(f"the reloaded model tells the same story: {same_story}")
if machine.kind == "cpu" and machine.precision == "fp32" and not same_story:
    raise RuntimeError(f"the model saved in {folder / 'model'} differs from the trained one:\n{retold}")

# %%
results_file = run_folder.write_results(
    "tinystories_reservoir",
    params,
    machine,
    **measured,
    forecast=forecast.results(),
    data={
        **splits.provenance,
        "train_examples": len(trainer.train_dataset),
        "eval_examples": len(trainer.eval_dataset),
        "train_tokens": len(corpus.train),
        "vocab_size": len(story_tokenizer),
    },
    model=model.parameter_counts(),
    diagnostics=diagnostics,
    eval={"before": before, "after": {name: after[name] for name in before}, "baselines": baselines},
    comparison=rows,
    caveats=caveats,
    artifacts={"model": "model", "figures": "figures", "same_story": same_story},
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Use the model elsewhere**: `AutoModelForCausalLM.from_pretrained("<output_dir>/model", trust_remote_code=True)`.
# - **Your own text**: set `data_source` to a `.txt` with `<|endoftext|>` between the pieces.
# - **Longer or larger**: raise `max_steps`, `num_stories` or the sizes in `reservoirs` and give a new `output_dir`.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all.
