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
# Fine-tunes a text classifier and switches on one optimisation after the other: batch size, mixed precision, fused AdamW,
# loader workers, TF32, gradient checkpointing, padding, SDPA attention, `torch.compile`. Each is timed **on this machine**,
# in turn with what was kept before it, and stays only if it is faster every time. At the end the tuned run is held against
# the start at equal quality.
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU, where other things help.
# **Run all** and wait. The TPU twin is `hardware_tuning_tpu.ipynb`; it has the same cells.
#
# No table of speed-ups that somebody else measured is in here. What helps depends on the machine, the model and the texts.
#
# Disconnected? Run all again: with the same `output_dir` the timings are read back and training goes on from the last
# checkpoint.

# %% [markdown] tags=["tpu"]
# # Hardware tuning: before and after, measured (TPU)
#
# Fine-tunes a text classifier and switches on one optimisation after the other: batch per chip, bf16 autocast, gradient
# checkpointing, padding length, SDPA attention. Each is timed **on this machine**, in turn with what was kept before it, and
# stays only if it is faster every time; compilation is reported apart. At the end the tuned run is held against the start at
# equal quality. What a TPU cannot use (fused AdamW, loader workers, TF32, `torch.compile`) is listed with the reason.
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips are used).
# Without one it warns and goes on with the GPU or the CPU. Every setting is another graph that XLA compiles, once. The GPU
# twin is `hardware_tuning.ipynb`; it has the same cells.
#
# Disconnected? Run all again: with the same `output_dir` the timings are read back and training goes on from the last
# checkpoint.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets sentence-transformers wandb matplotlib

# %% [markdown]
# ## Parameters
#
# `data_source` is a Hub data set, a path to your own `.csv` or `.jsonl` with `text` and `label` (or a folder with `train.csv`,
# `validation.csv`, `test.csv`), or `"sample"`: documentation strings of Python by package, which need no network. Zeros mean
# "what the recipe says"; `batch_size=0` finds the batch by trying. Tokens never belong here: put `HF_TOKEN` or
# `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# @title Parameters
data_source: str = "dair-ai/emotion"  # @param {type:"string"}
num_rows: int = 0  # @param {type:"integer"}
eval_rows: int = 0  # @param {type:"integer"}
positive_label: str = ""  # @param {type:"string"}
class_weights: bool = True  # @param {type:"boolean"}
base_model: str = "google-bert/bert-base-uncased"  # @param ["google-bert/bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2", "sample"] {allow-input: true}
max_length: int = 192  # @param {type:"integer"}
output_dir: str = "outputs/hardware_tuning"  # @param {type:"string"} # gpu only
output_dir: str = "outputs/hardware_tuning_tpu"  # @param {type:"string"} # tpu only
resume: bool = True  # @param {type:"boolean"}
use_tpu: bool = False  # @param {type:"boolean"} # gpu only
use_tpu: bool = True  # @param {type:"boolean"} # tpu only
precision: str = "auto"  # @param ["auto", "fp32", "bf16", "fp16"]
seed: int = 0  # @param {type:"integer"}
max_steps: int = 0  # @param {type:"integer"}
start_batch_size: int = 8  # @param {type:"integer"}
batch_size: int = 0  # @param {type:"integer"}
largest_batch_size: int = 64  # @param {type:"integer"}
learning_rate: float = 0.0  # @param {type:"number"}
window_examples: int = 256  # @param {type:"integer"}
repetitions: int = 3  # @param {type:"integer"}
try_compile: bool = True  # @param {type:"boolean"}
calibrate: bool = True  # @param {type:"boolean"}
compare_start: bool = True  # @param {type:"boolean"}
further_seeds: int = 0  # @param {type:"integer"}
patience: int = 2  # @param {type:"integer"}
evaluations: int = 6  # @param {type:"integer"}
logging_steps: int = 50  # @param {type:"integer"}
text: str = "i feel like nobody listens to me"  # @param {type:"string"}
report_to: str = "none"  # @param ["none", "wandb"]

# %% [markdown]
# ## Check and look around
#
# Every parameter is checked before anything is downloaded, the output folder is claimed for this run, and the machine is
# reported with the reason for each choice.

# %%
from helpers import parameters, run_folder, runtime
from helpers.tuning.parameters import TuningParameters

params = parameters.check(TuningParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
print(machine)
folder = run_folder.claim(params.output_dir, "hardware_tuning", parameters.identity(params), resume=params.resume)
print(f"output     {folder.resolve()}")

# %% [markdown]
# ## Data
#
# A text that is in two splits would be a question whose answer was trained on: it stays in the last of training, validation
# and test only, and what was removed is counted.

# %%
from helpers.tuning import experiment

texts = experiment.load_texts(params)
run_folder.same_data(folder, texts.source)
print(texts)
for row, label in texts.train[:3]:
    print(f"\n{texts.labels[label]}: {row[:300]}")

# %% [markdown]
# ## Model
#
# The pretrained encoder with a new head. How long the texts really are says most about padding: with a median far below
# `max_length`, most of what a fixed length computes is padding.

# %%
task = experiment.load_task(params, texts)
trained = sum(weight.numel() for weight in task.model.parameters() if weight.requires_grad)
print(f"{type(task.model).__name__}, {trained:,} parameters, {len(texts.labels)} labels")
print("tokens a text:", ", ".join(f"{name} {count}" for name, count in experiment.lengths(task, params).items()))
if task.weights is not None:
    print("class weights:", dict(zip(texts.labels, task.weights.round(2).tolist(), strict=True)))

# %% [markdown]
# ## Plan
#
# Where tuning starts: nothing switched on. The memory figure is an estimate from shapes; what is measured comes next.

# %%
start = task.start(params, machine)
print(experiment.run_plan(task, start, params, machine))

# %% [markdown]
# ## One optimisation at a time
#
# First the largest batch that fits (up to `largest_batch_size`: beyond it too few steps are left to learn from), found by
# trying. Then every optimisation on top of what was kept: `repetitions` timings, each in turn with the setting before it, on
# the same examples from the same weights. Kept is what was faster every time and by more than 2 % in the median.

# %%
climb = experiment.tune(task, params, machine, folder)
tuned = climb.tuned

# %% [markdown]
# **speed-up** is over the start, in examples a second. **loss** and **F1** are those of the short timing: they say that
# nothing broke, no more; quality is judged by the whole runs below. **busy** is the device's utilisation.

# %%
print(experiment.table(climb.rungs))
figure = experiment.plot_climb(
    climb.rungs, folder / "figures" / "optimisations.png", title=f"What helps on {machine.device_name}"
)

# %% [markdown]
# ## The tuned run
#
# As many examples as the start would see; a larger batch takes fewer steps, at a learning rate that grows with the square
# root of the batch. The best weights by F1 on validation are kept. What it is expected to take follows from the timings
# above.

# %%
trainer = experiment.new_run(task, tuned, params, machine, folder / f"tuned-{params.seed}", params.seed)
print("changed:", {name: change[0] for name, change in tuned.differences(start).items()})
print(trainer.plan)
forecast = experiment.forecast(climb, trainer.plan, task, machine)
print(f"\n{forecast}")
before = experiment.examine(trainer, task)

# %%
from helpers.monitoring import Monitor

with Monitor(machine) as monitor:
    output = trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `mfu` is the share of the named datasheet peak that was used. Utilisation below it in the plot
# means waiting: for the loader, for Python, for a larger batch.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. `compiles_after_warmup` and `host_syncs_per_step` must be 0: anything
# else means that shapes change or that values leave the chip at every step.

# %%
measured = trainer.results()
print("\n".join(f"{name:<28}{value}" for name, value in measured["train"].items()))
print("\n".join(f"{name:<28}{value}" for name, value in measured.get("xla", {}).items()))
print(forecast.beside(measured["train"]))
figure = monitor.plot(folder / "figures" / "utilisation.png", title="The tuned run")

# %% [markdown]
# ## Against the start, at equal quality
#
# The same training with nothing switched on. `further_seeds=2` repeats both: without it there is no spread, and a difference
# means little. Where validation says that quality was lost, a step back is taken and trained, too: without length-grouped
# batches first, then at full length, then with the first batch size, then with the first precision. Of two labels the
# threshold is chosen on validation alone, and so are the settings that stay; what the test says comes after.

# %%
from helpers.tuning import comparison

compared = comparison.compare(trainer, task, params, machine, folder)
after = compared.rows[params.seed][compared.chosen]
print()
for seed, models in compared.rows.items():
    for name, values in models.items():
        scored = f"F1 {values['f1']:.4f}  accuracy {values['accuracy']:.4f}  {values['training_seconds']} s"
        print(f"seed {seed}  {name:<18}{scored}")
print(f"{compared.verdict}\nkept: {compared.chosen}")

# %% [markdown]
# ## Save, reload, classify
#
# The saved model must give the logits of the one in memory.

# %%
reloaded, tokenizer, difference = experiment.save_and_reload(
    compared.trainer, task, folder / "model", [text for text, _ in texts.test[:8]]
)
print(f"the reloaded model differs by {difference:.1e} of the largest value")
label, probability = experiment.classify(reloaded, tokenizer, params.text, compared.settings.length, after["threshold"])
print(f"{params.text!r}: {label} ({probability:.0%})")

# %% [markdown]
# ## Calibrate the planner
#
# A few real steps of each notebook's model on this machine, so that the other notebooks can say before training how long
# it will take (`calibrate=False` leaves it out; on a CPU small models stand in for the real ones).

# %%
if params.calibrate:
    print(experiment.calibrate(params, machine, folder))

# %%
results_file = run_folder.write_results(
    folder,
    {
        "notebook": "hardware_tuning",
        "seed": params.seed,
        "runtime": machine.results(),
        **measured,
        "forecast": forecast.results(),
        "data": {
            "source": texts.source,
            "train_examples": len(texts.train),
            "eval_examples": len(texts.validation),
            "test_examples": len(texts.test),
            "labels": len(texts.labels),
            "duplicates_removed": texts.duplicates_removed,
            "overlaps_removed": texts.overlaps_removed,
        },
        "model": {"base_model": params.base_model, "trainable": trained},
        "settings": {"start": vars(start), "tuned": vars(tuned), "chosen": vars(compared.settings)},
        "batch_search": climb.search and vars(climb.search) | {"trials": [vars(each) for each in climb.search.trials]},
        "start": experiment.start_results(climb.rungs),
        "optimisations": experiment.optimisation_results(climb.rungs),
        "monitoring": monitor.results(),
        "eval": {"before": before, "after": after, "baselines": {"start": compared.rows[params.seed].get("start")}},
        "comparison": compared.rows,
        "chosen": compared.chosen,
        "verdict": vars(compared.verdict),
        "artifacts": {"model": "model", "figures": "figures"},
    },
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Your own texts**: set `data_source` to a `.csv` with `text` and `label`. Their lengths decide what padding gives.
# - **Use the model elsewhere**: `pipeline("text-classification", "<output_dir>/model")`.
# - **Out of memory**: shorten `max_length` first (the longest text is printed above), then lower `start_batch_size`; gradient
#   checkpointing costs time and gives memory, in the table you see how much of each.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all, and lay the two tables side by side.
