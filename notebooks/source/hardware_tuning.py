# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # Hardware tuning: which settings are faster on this GPU
#
# This notebook fine-tunes a text classifier on your own labelled texts. It begins with a stock `Trainer` and changes one line of its
# `TrainingArguments` after the other: precision, optimizer, padding, attention, loader workers, `torch.compile`, batch size. Each
# change is timed **on this machine**, in turn with what was kept before it, and stays only where it is faster in pair after pair.
# You leave with the trained model, the lines that were kept, and a script that trains with them in stock transformers.
#
# {picture: Speed of each change over what was kept before it, with the range of its pairs}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU, where other changes help.
# Press **Run all** and wait. The TPU twin is `hardware_tuning_tpu.ipynb`.
#
# {planned}
#
# **The defaults** are the model `bert-base-uncased` (Apache-2.0) and the texts `dair-ai/emotion` (licence stated as "other", for
# education and research). The hub cannot be reached from where this notebook is tested, so these defaults were not run by us; the same
# cells were run with other models and files, and with `data_source="sample"`.
#
# If you are disconnected, press **Run all** again: the timings are read back and training goes on where it stopped, as long as its disk is still
# there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # Hardware tuning: which settings are faster on this TPU
#
# This notebook fine-tunes a text classifier on your own labelled texts. It changes one setting after the other: bf16 autocast, padding
# length, attention, batch size. Each change is timed **on this machine**, in turn with what was kept before it, and stays only where
# it is faster in pair after pair. What a TPU cannot use (TF32, loader workers, `torch.compile`) is listed with the reason.
#
# {picture: Speed of each change over what was kept before it, with the range of its pairs}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips).
# Without one it goes on with the GPU or the CPU. Every setting is another graph that XLA compiles, once. The GPU
# twin is `hardware_tuning.ipynb`.
#
# {planned}
#
# **The defaults** are the model `bert-base-uncased` (Apache-2.0) and the texts `dair-ai/emotion` (licence stated as "other", for
# education and research). The hub cannot be reached from where this notebook is tested, so these defaults were not run by us; the same
# cells were run with other models and files, and with `data_source="sample"`.
#
# If you are disconnected, press **Run all** again: the timings are read back and training goes on where it stopped, as long as its disk is still
# there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers wandb nvidia-ml-py matplotlib

# %% [markdown]
# ## Parameters
#
# {own data} The sample needs no network. A zero takes the recipe's value. Everything that is timed or compared ends within
# `tuning_minutes`; what no time was left for is named. Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY` into the
# runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.tuning.parameters.TuningParameters

# %% [markdown]
# ## Check the parameters and the machine
#
# Every parameter is checked before anything is downloaded, and the machine is reported with the reason for each choice.

# %%
import time

from helpers import parameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.run.run_folder import RunFolder
from helpers.show import tables
from helpers.tuning.parameters import TuningParameters

began = time.monotonic()
secrets.provide("HF_TOKEN")
params = parameters.check(TuningParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
run = RunFolder.claim("hardware_tuning", params)
print(machine, f"output     {run.path}", sep="\n")

# %% [markdown]
# ## Data
#
# A text that is in two splits stays in the last of training, validation and test only, and what was removed is counted. Your own
# file has a header and one row for each text, such as
#
# ```
# review,stars
# "Arrived late, and broken.",1
# ```
#
# with `data_source="reviews.csv"`, `text_column="review"` and `label_column="stars"`.

# %%
from helpers.tuning.data import load_texts

texts = load_texts(params)
run.same_data(texts.source)
print(texts)
print(*(f"\n{texts.labels[label]}: {row[:300]}" for row, label in texts.train[:3]), sep="\n")

# %% [markdown]
# ## The method, in one file
#
# A rung of the ladder is a line of `TrainingArguments`. Short windows of real training with it and without it take turns, so that whatever
# else the machine does falls on both. A rung is kept where every one of six pairs is faster, or all but one of nine; a second slower
# pair ends it. No noise is measured first and none is assumed. **Change a rung or the rule below and run all cells again: your
# ladder is what is climbed.**

# %% tags=["method"]
# method: helpers/tuning/ladder.py

# %% [markdown]
# ## What costs nothing
#
# The most frequent label, and a linear model on words and pairs of words. A fine-tuned encoder should be better than both on the test
# texts; where it is not, the texts are few or the training is short.

# %%
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from helpers.tuning.evaluation import scores

words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
models = {
    "the most frequent label": DummyClassifier(strategy="prior"),
    "a linear model on words": make_pipeline(words, LogisticRegression(C=10, max_iter=1000)),
}
(train_texts, train_labels), (test_texts, test_labels) = (zip(*rows, strict=True) for rows in (texts.train, texts.test))
rivals = {
    name: scores(model.fit(train_texts, train_labels).predict(test_texts), test_labels)
    for name, model in models.items()
}
tables.show([{"model": name, **found} for name, found in rivals.items()], "Test texts")

# %% [markdown]
# ## Climb
#
# It starts with a stock `Trainer`: what `TrainingArguments()` and the libraries choose when they are told nothing. (XLA alone needs one
# padding length and plain AdamW.) Where the median text is far shorter than the longest, most of what a batch of mixed lengths
# computes is padding. Then one change after the other, each on top of what was kept. The batch comes last and is doubled while that
# helps; gradient checkpointing and 8-bit AdamW cost time, so that they are tried only with a batch that does not fit without
# them. One thread of a CPU is timed in processor time, which other programs do not stretch; all else by the wall clock.

# %%
from statistics import median

import matplotlib.pyplot as plt

run.use_method()
from helpers.tuning import ladder
from helpers.tuning.training import Task

task = Task.load(params, texts, machine)
trained = sum(weight.numel() for weight in task.model.parameters() if weight.requires_grad)
print(f"{type(task.model).__name__}, {trained:,} weights, {len(texts.labels)} labels")
tables.show([task.lengths()], "Tokens of a training text")
tables.show([{"TrainingArguments": name, "start": value} for name, value in task.start.items()])

climbed = ladder.climbed(task, run.path, seconds=30 * params.tuning_minutes)
settings = ladder.chosen(climbed)
rows = [
    {
        "change": each.name,
        "TrainingArguments": ", ".join(f"{name}={value!r}" for name, value in each.change.items()),
        "verdict": each.verdict,
        "examples/s": each.window and each.window.examples_per_second,
        "memory": tables.size(each.window and each.window.peak_bytes),
    }
    for each in climbed
]
tables.show(rows, "Changes, each on top of what was kept")

timed = [each for each in climbed if each.ratios]
middle = [median(each.ratios) for each in timed]
spread = [[at - min(each.ratios), max(each.ratios) - at] for at, each in zip(middle, timed, strict=True)]
figure, axes = plt.subplots(figsize=(8, 0.45 * len(timed) + 1.6), layout="constrained")
colours = ["tab:blue" if each.kept else "lightsteelblue" for each in timed]
axes.barh([each.name for each in timed], middle, color=colours)
for place, (at, (low, high)) in enumerate(zip(middle, spread, strict=True)):
    axes.errorbar(at, place, xerr=[[low], [high]], color="0.3", capsize=3)
axes.invert_yaxis()
axes.axvline(1, color="0.4", linestyle="--", label="what was kept before")
axes.set(title=f"What helps on {machine.device_name}", xlabel="examples a second, times those before the change")
axes.legend(loc="lower right")
(run.path / "figures").mkdir(exist_ok=True)
figure.savefig(run.path / "figures" / "optimisations.png", dpi=120)

# %% [markdown]
# ## Train with what was kept
#
# As many examples as the stock Trainer would see; a larger batch takes fewer steps, at a learning rate that grows with the square
# root of the batch. The weights with the least loss on the validation texts are kept. A GPU's utilisation and memory are read at each log: below
# 70 % the device waits, and the line says what to change.

# %%
from helpers.plan.forecast import here
from helpers.tuning.training import ClassifierTrainer, Utilisation, clock

trainer = ClassifierTrainer(task, settings, run.path / f"tuned-{params.seed}", seed=params.seed)
forecast = here(task.step, trainer.plan, machine)
tables.show(forecast.rows())
watch = Utilisation(machine)
trainer.add_callback(watch)
trainer.train(resume_from_checkpoint=params.resume)
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
tables.show(forecast.beside(measured["train"]))
print(watch.advice())

# %% [markdown]
# ## The verdict: against the stock Trainer, at equal quality
#
# Both train with `paired_seeds` seeds, as far as `tuning_minutes` allow. Each pair shares data, order and first weights, so that what differs
# between seeds cancels. Fewer than three pairs have no spread: then quality counts as not checked. Where nothing was kept there is
# nothing to compare, and the one run stands.

# %%
from helpers.tuning import evaluation


def train(settings, folder, seed):
    other = ClassifierTrainer(task, settings, folder, seed=seed)
    other.train(resume_from_checkpoint=params.resume)
    return other


left = 60 * params.tuning_minutes - (time.monotonic() - began)
compared = evaluation.paired_seeds(trainer, task, run.path, train, seconds=left)
after = compared.runs[params.seed]["tuned"]
tables.show(
    [
        {"seed": seed, "settings": name, "test F1": found["f1"], "training": tables.seconds(found["training_seconds"])}
        for seed, pair in compared.runs.items()
        for name, found in pair.items()
    ]
)
tables.show([{"model": name, **found} for name, found in {"this run": after, **rivals}.items()], "Test texts")
speed = f"{climbed[-1].name}: {climbed[-1].verdict}" if settings != task.start else "no change was kept"
by_words = rivals["a linear model on words"]["f1"]
print(f"speed    {speed}", f"quality  {compared.why}", sep="\n")
print(f"words    test F1 {after['f1']:.3f}, and {by_words:.3f} for a linear model on words ({len(test_texts)} texts)")

# %% [markdown]
# ## Save, reload, classify, carry away
#
# The saved model must give the logits of the one in memory. Beside it lie the lines that were kept, `training_args.json`, and a script
# for stock transformers: `python train.py texts.csv` needs nothing of this notebook.

# %%
import copy

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from helpers.run.run_folder import sessions
from helpers.tuning.export import write_stock

trained_model = copy.deepcopy(task.model)  # the trained one is wrapped by what its precision needs
trained_model.load_state_dict({name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()})
trainer.save_model(str(run.path / "model"))
reloaded = AutoModelForSequenceClassification.from_pretrained(run.path / "model")
tokenizer = AutoTokenizer.from_pretrained(run.path / "model")
inputs = tokenizer(
    list(test_texts[:8]), padding=True, truncation=True, max_length=params.max_length, return_tensors="pt"
)
with torch.no_grad():
    ours, theirs = (model.eval()(**inputs).logits for model in (trained_model, reloaded))
torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
classify = pipeline("text-classification", model=reloaded, tokenizer=tokenizer, device="cpu")
text = "i feel like nobody listens to me"  # or any text in quotes
tables.show(classify(text, top_k=3, truncation=True, max_length=params.max_length), text)

for file in write_stock(task, settings, run.path / "stock", model="../model"):
    print(file)

results_file = run.results(
    machine,
    **measured,
    sessions=sessions(trainer.args.output_dir),  # the kept run has a folder of its own
    ladder=climbed,
    clock=clock(machine),
    verdict=compared,
    forecast=forecast.results(),
    data=texts.results(),
    model={"base_model": params.base_model, "trainable": trained},
    settings={"start": task.start, "tuned": settings},
    utilisation={"logs": watch.samples, "advice": watch.advice()},
    eval={"after": after, "baselines": rivals},
    artifacts={"model": "model", "stock": "stock", "figures": "figures"},
)
print(results_file)

# %% [markdown]
# ## Next steps
#
# - **Your own texts**: set `data_source` to a `.csv` with `text` and `label`.
# - **Use the model elsewhere**: `pipeline("text-classification", "<output_dir>/model")`.
# - **Another notebook, on this machine**: `python -m helpers.plan NOTEBOOK --measured <output_dir>/results.json` rests its time on this run.
# - **Out of memory**: shorten `max_length` first, then lower the batch; `training_args.json` takes `gradient_checkpointing`, too, which costs
#   time and gives memory.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all, and lay the two tables side by side.
