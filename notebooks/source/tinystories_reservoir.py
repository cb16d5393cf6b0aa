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
# text, and only a readout learns to predict the next token. At the end you have bits per byte beside n-grams and an
# equally large transformer, and a model to load elsewhere.
#
# {picture: Validation loss of a reservoir and of a transformer with as many trained weights, beside n-gram models}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU.
# The TPU twin is `tinystories_reservoir_tpu.ipynb`.
#
# {planned}
#
# Disconnected? Run all again: it continues from the last checkpoint in `output_dir` and ends with the same weights.

# %% [markdown] tags=["tpu"]
# # A reservoir language model on TinyStories (TPU)
#
# Trains a language model whose recurrent part is **never trained**: a frozen, random echo-state network remembers the
# text, and only a readout learns to predict the next token. At the end you have bits per byte beside n-grams and an
# equally large transformer, and a model to load elsewhere.
#
# {picture: Validation loss of a reservoir and of a transformer with as many trained weights, beside n-gram models}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips).
# Without one it goes on with the GPU or the CPU. XLA compiles the first steps, which takes long. The GPU twin is
# `tinystories_reservoir.ipynb`.
#
# {planned}
#
# Disconnected? Run all again: it continues from the last checkpoint in `output_dir` and ends with the same weights.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock wandb matplotlib

# %% [markdown]
# ## Parameters
#
# A zero takes the recipe's value. {own data} A `.txt` has a blank line between two stories. Tokens never belong here: put
# `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.reservoir.parameters.ReservoirParameters

# %% [markdown]
# ## Check the parameters and the machine
#
# Every parameter is checked before anything is downloaded.

# %%
from helpers import parameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.reservoir.parameters import ReservoirParameters
from helpers.run.run_folder import RunFolder
from helpers.show import tables

secrets.provide("HF_TOKEN")
params = parameters.check(ReservoirParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
print(machine)
run = RunFolder.claim("tinystories_reservoir", params)
folder = run.path
print(f"output     {folder}")

# %% [markdown]
# ## Data
#
# Exact duplicates are removed: no story is in both splits.

# %%
from helpers.reservoir.stories import load_stories

splits = load_stories(params.data_source, num_stories=params.stories_wanted, seed=params.seed)
run.same_data(splits.source)
counts = {"training stories": len(splits.train), "validation stories": len(splits.validation)}
tables.show([counts | {"duplicates removed": splits.duplicates_removed}], splits.source)
print(splits.train[0])

# %% [markdown]
# ## The method, in one file
#
# Change a line below and run all cells again: your version is what trains, in a folder of its own.

# %% tags=["method"]
# method: helpers/reservoir/model.py

# %%
run.use_method()
folder = run.path

# %% [markdown]
# The same story as the model sees it, in byte-level tokens.

# %%
from helpers.reservoir import experiment
from helpers.reservoir.tokens import load_tokenizer

story_tokenizer, reason = load_tokenizer(params.tokenizer, splits.train, params.vocab_size, params.trim_vocabulary)
corpus = experiment.tokenise(splits, story_tokenizer)
tables.show([{"training tokens": len(corpus.train), "validation tokens": len(corpus.validation)}], reason)
print(story_tokenizer.convert_ids_to_tokens(story_tokenizer(splits.train[0])["input_ids"][:24]))

# %% [markdown]
# ## Model
#
# `frozen` weights are the echo-state network, drawn once from the seed: nothing is trained through time. A token enters as its embedding by co-occurrence in the
# training text. **Recall** proposes what followed earlier places of the text that look like the present one.

# %%
model = experiment.new_model(params, corpus)
print(model)
weights = {"trainable": model.num_parameters(), "frozen": sum(b.numel() for b in model.reservoir.buffers())}
tables.show([weights], "Weights")

# %% [markdown]
# ## Plan
#
# What will run and why, and what it is expected to take.

# %%
from helpers.plan import forecast as forecasts
from helpers.plan import settings as planner
from helpers.reservoir.parameters import recipe
from helpers.reservoir.workload import workload

step = workload(model, f"{params.units} units", params.sequence_length)
sizes = {"batch_size": params.batch_size, "learning_rate": params.learning_rate, "max_steps": params.max_steps}
plan = planner.plan(recipe(params.sequence_length, len(corpus.train)), step, machine, **sizes)
tables.show(plan.rows())
forecast = forecasts.here(step, plan, machine)
tables.show(forecast.rows())

# %% [markdown]
# ## Before training
#
# The Kneser-Ney trigram is the bar: a model that ends above it has learned no more than which token follows which two.

# %%
trainer = experiment.new_trainer(model, corpus, params, plan, machine, folder)
before = experiment.evaluate(trainer, corpus)
baselines = experiment.baselines(corpus, trainer.eval_dataset)
tables.show([{"model": name, **values} for name, values in {"untrained": before, **baselines}.items()])

# %% [markdown]
# ## Train
#
# Every block is read with the state that the story so far left, which is computed once: blocks can still be shuffled. The
# best weights by validation loss are loaded at the end.

# %%
output = trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `mfu` is the share of the named datasheet peak that was used; a reservoir is a chain of
# small matrix products, so expect single digits.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. `compiles_after_warmup` and `host_syncs_per_step` must be 0.

# %%
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
tables.show(forecast.beside(measured["train"]))

# %% [markdown]
# ## A transformer beside it
#
# A Llama of as many trained parameters, with the same batches and trainer. Its embedding starts from the same vectors; it
# does not see what was before a block.
# `further_seeds=2` repeats both, without which a small difference means little.

# %%
from helpers.reservoir import comparison

rows = comparison.over_seeds(trainer, corpus, params, folder)

# %% [markdown]
# ## After training
#
# The same measure, a story of each, and the loss against tokens and seconds.

# %%
tables.show(comparison.table({"untrained": before, **baselines}, rows))
caveats = f"{comparison.seen(rows)} {comparison.caveats(params.data_source, baselines, rows[params.seed])}".strip()
print(caveats)
after = rows[params.seed]["reservoir"]
story = after["story"]
for name, values in rows[params.seed].items():
    print(f"\n--- {name}\n{values['story']}")
figure = comparison.plot(
    rows[params.seed],
    {name: values["loss"] for name, values in baselines.items()},
    folder / "figures" / "loss.png",
    title=f"{len(splits.train)} stories, {after['trainable'] / 1e6:.1f}M trained parameters each",
)

# %% [markdown]
# ## Save, reload, compare
#
# The saved model must tell the same story as that in memory (in half precision it may not).

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
results_file = run.results(
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
    model=weights,
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
# - **Longer or larger**: raise `max_steps`, `num_stories` or `units`, in a new `output_dir`.
