# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # Hardware tuning: before and after, measured (GPU)
#
# Fine-tunes a text classifier and changes one setting after the other, from those of a stock `Trainer` on: TF32, mixed
# precision, attention, padding, loader workers, `torch.compile`, batch size, and what saves memory for a larger batch. Each
# is timed **on this machine**, in turn with what was kept before it, and stays only if it is faster by more than noise. At
# the end the tuned run is held against the stock one at equal quality.
#
# {picture: Speed of each setting that was tried over the start's, with 95 % intervals}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU, where other things help.
# **Run all** and wait. The TPU twin is `hardware_tuning_tpu.ipynb`.
#
# {planned}
#
# Disconnected? Run all again: with the same `output_dir` the timings are read back and training goes on from the last
# checkpoint.

# %% [markdown] tags=["tpu"]
# # Hardware tuning: before and after, measured (TPU)
#
# Fine-tunes a text classifier and changes one setting after the other: bf16 autocast, attention, padding length, batch, and
# gradient checkpointing for a larger one. Each is timed **on this machine**, in turn with what was kept before it, and stays
# only if it is faster by more than noise. At the end the tuned run is held against the start
# at equal quality. What a TPU cannot use (TF32, loader workers, `torch.compile`) is listed with the reason.
#
# {picture: Speed of each setting that was tried over the start's, with 95 % intervals}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips).
# Without one it goes on with the GPU or the CPU. Every setting is another graph that XLA compiles, once. The GPU
# twin is `hardware_tuning.ipynb`.
#
# {planned}
#
# Disconnected? Run all again: with the same `output_dir` the timings are read back and training goes on from the last
# checkpoint.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers wandb nvidia-ml-py matplotlib

# %% [markdown]
# ## Parameters
#
# {own data} The sample needs no network. A zero takes the recipe's value. Trials and comparing runs end within
# `tuning_minutes`; what no time was left for is named. Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.tuning.parameters.TuningParameters

# %% [markdown]
# ## Check the parameters and the machine
#
# Every parameter is checked before anything is downloaded, and the machine is reported with the reason for each choice.

# %%
from helpers import parameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.run import run_folder
from helpers.run.run_folder import RunFolder
from helpers.show import tables
from helpers.tuning.parameters import TuningParameters

secrets.provide("HF_TOKEN")
params = parameters.check(TuningParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
print(machine)
run = RunFolder.claim("hardware_tuning", params)
folder = run.path
print(f"output     {folder}")

# %% [markdown]
# ## Data
#
# A text that is in two splits stays in the last of training, validation and test only, and what was removed is counted. Your own file has a row a text and a header, such as
#
# ```
# review,stars
# "Arrived late, and broken.",1
# ```
#
# with `data_source="reviews.csv"`, `text_column="review"` and `label_column="stars"`.

# %%
from helpers.tuning import experiment

texts = experiment.load_texts(params)
run.same_data(texts.source)
print(texts)
tables.show([{"rows removed": why, "": count} for why, count in texts.removed.items()])
print(*(f"\n{texts.labels[label]}: {row[:300]}" for row, label in texts.train[:3]), sep="\n")

# %% [markdown]
# ## Model
#
# The pretrained encoder with a new head. With a median far below `max_length`, most of what a fixed length computes is padding.

# %%
from helpers.tuning.task import load_task

task = load_task(params, texts, machine)
trained = sum(weight.numel() for weight in task.model.parameters() if weight.requires_grad)
print(f"{type(task.model).__name__}, {trained:,} parameters, {len(texts.labels)} labels")
tables.show([task.lengths()], "Tokens of a training text")
if task.weights is not None:
    tables.show(task.weight_rows())

# %% [markdown]
# ## Plan
#
# Where tuning starts: what `TrainingArguments()` and the libraries choose when they are told nothing. (XLA alone needs one
# padding length and plain AdamW.)

# %%
start = task.start
tables.show(task.plan(start).rows())

# %% [markdown]
# ## One optimisation at a time
#
# Every change comes on top of what was kept: `repetitions` timings, in turn with the setting before it, on the same examples
# from the same weights. The start is timed more often, which says what noise is here. Kept is a change whose 95 % interval
# lies above 1. The batch is doubled last, while that helps; what saves memory has to earn its place with the batch that did
# not fit without it. A setting that is more than five times as slow as the start is given up while it warms up. One thread of a CPU is timed in processor time, which other
# programs do not stretch; all else by the wall clock.

# %%
from helpers.tuning import climb

climbed = climb.tune(task, folder)
tuned = climbed.top.settings

# %% [markdown]
# **speed-up** is over the start, in examples a second. The last line, tuned over the start, is timed once more, since
# the timing that chose a setting flatters it. **loss** is that of the short timing: it says that nothing broke, no more; quality is
# judged by the whole runs below.

# %%
tables.show(climbed.rows(), "Optimisations, each on top of what was kept")
figure = climb.plot(
    climbed.rungs, folder / "figures" / "optimisations.png", title=f"What helps on {machine.device_name}"
)

# %% [markdown]
# ## The tuned run
#
# As many examples as the start would see; a larger batch takes fewer steps, at a learning rate that grows with the square
# root of the batch. The best weights by F1 on validation are kept. What it is expected to take follows from the timings
# above, whose clock starts after four steps: a run of few steps takes longer.

# %%
from helpers.tuning.task import clock
from helpers.tuning.training import ClassifierTrainer

trainer = ClassifierTrainer(task, tuned, folder / f"tuned-{params.seed}", seed=params.seed)
tables.show(tuned.changes(start))

# %%
forecast = experiment.forecast(climbed, trainer.plan, task)
tables.show(forecast.rows())
before = experiment.examine(trainer, task)
tables.show([{"model": "untrained", **before}])

# %%
output = trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `mfu`, the model FLOPs utilisation, is the share of the named datasheet peak that was used.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. Compiles after warm-up and host syncs a step must be 0: anything else
# means that shapes change or that values leave the chip at every step.

# %%
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
tables.show(forecast.beside(measured["train"]))

# %% [markdown]
# ## Against the start, at equal quality
#
# The same training with the stock settings, and both again with `further_seeds` more seeds as far as `tuning_minutes` allow:
# with one seed there is no spread, and quality counts as not checked. Of two labels the threshold is chosen
# on validation alone.

# %%
timed = {"spent": climbed.seconds, "speed_up": climbed.top.speed_up}
compared = experiment.compare(trainer, task, folder, **timed)
after = compared.rows[params.seed]["tuned"]

# %%
tables.show(compared.table(), f"Training in {clock(machine)}")
print(compared.verdict.why)

# %% [markdown]
# ## Save, reload, classify
#
# The saved model must give the logits of the one in memory.

# %%
from transformers import pipeline

reloaded, tokenizer, difference = experiment.save_and_reload(trainer, task, folder / "model")
print(f"the reloaded model differs by {difference:.1e} of the largest value")
classify = pipeline("text-classification", model=reloaded, tokenizer=tokenizer, device="cpu")
tables.show(classify(params.text, top_k=3, truncation=True, max_length=trainer.settings.length), params.text)
if after["threshold"] is not None:
    print(f"on validation {texts.labels[1]!r} was best from a score of {after['threshold']:.2f} on")

# %% [markdown]
# ## Carry it away
#
# The settings that were kept, for stock transformers: a script of your own to start from, its `TrainingArguments` and an
# `accelerate` configuration. `python train.py texts.csv` needs nothing of this notebook. (Rare labels weigh no more there.)

# %%
from helpers.tuning import export

for file in export.write(task, trainer.settings, folder / "stock", model="../model"):
    print(file.resolve())

# %%
results_file = run.results(
    machine,
    **measured,
    **climbed.results(),
    **compared.results(),
    clock=clock(machine),
    sessions=run_folder.sessions(trainer.args.output_dir),
    forecast=forecast.results(),
    data=texts.results(),
    model={"base_model": params.base_model, "trainable": trained},
    settings={"start": vars(start), "tuned": vars(tuned)},
    eval={"before": before, "after": after, "baselines": {"start": compared.rows[params.seed].get("start")}},
    artifacts={"model": "model", "figures": "figures"},
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Your own texts**: set `data_source` to a `.csv` with `text` and `label`.
# - **Use the model elsewhere**: `pipeline("text-classification", "<output_dir>/model")`.
# - **Out of memory**: shorten `max_length` first (the longest text is printed above), then lower `start_batch_size`. The exported
#   `training_args.json` takes `gradient_checkpointing`, too, which costs time and gives memory.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all, and lay the two tables side by side.
