# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # Settings that reach the same quality sooner on this GPU
#
# It fine-tunes a classifier on your labelled texts, and finds settings of the `Trainer` that reach the same quality sooner **on this machine**. You
# leave with the trained model, and with a script for stock transformers.
#
# {picture: Speed of each change over what was kept before it, with the range of its pairs}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*), or the CPU. Press **Run all**. If you are disconnected, press it again: the run
# goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so set `keep_in` (in Colab: `drive`).
#
# The defaults are `bert-base-uncased` (Apache-2.0) and `dair-ai/emotion` (for education and research). We ran these cells with other models and data.

# %% [markdown] tags=["tpu"]
# # Settings that reach the same quality sooner on this TPU
#
# It fine-tunes a classifier on your labelled texts, and finds settings of the `Trainer` that reach the same quality sooner **on this machine**: batch
# size, bf16 and learning rate. What a TPU cannot use is listed with the reason.
#
# {picture: Speed of each change over what was kept before it, with the range of its pairs}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*), else the GPU or the CPU. Press **Run all**. If you are
# disconnected, press it again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so set `keep_in`
# (in Colab: `drive`). Every setting is another graph, which XLA compiles once.
#
# The defaults are `bert-base-uncased` (Apache-2.0) and `dair-ai/emotion` (for education and research). We ran these cells with other models and data.

# %% [markdown]
# ## Your settings
#
# {own data} The sample needs no network. 0 = choose for me. The verdict comes within `tuning_minutes`. Every setting is checked before anything is
# downloaded. Never paste API keys here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.tuning.parameters.TuningParameters

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers charset-normalizer scipy scikit-learn wandb nvidia-ml-py matplotlib

# %%
import time

from helpers import parameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.notebook.settings import say_changed
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
# Empty and repeated texts and texts with several labels are removed and counted. Your own file has a header and a row for each text. If its columns
# are not `text` and `label`, set `text_column` and `label_column`.

# %%
from helpers.tuning.data import load_texts

texts = load_texts(params)
run.note(data=texts.provenance)
tables.show([texts.counts()], texts.name)
for row in texts.train.head(3).itertuples():
    print(f"\n{texts.labels[row.label]}: {row.text[:300]}")

# %% [markdown]
# ## The method, in one file
#
# What is faster? Short windows of training with a change and without it take turns. Which rate? The stock batch trains with 2, 4 and 8 times its
# rate, and the best run is the reference. Is it as good? Candidates train, and one is kept where loss and F1 are shown to be as good.
# **Open the next cell, change a change or a rule, and run all again: yours is what runs.**

# %% tags=["method"]
# method: helpers/tuning/ladder.py

# %% [markdown]
# ## What costs nothing
#
# The most frequent label, and linear models on words and pairs of words, and on what the encoder makes of a text before any training. A fine-tuned
# encoder should be better than all of them.

# %%
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer

from helpers.train.sentence_encoder import encode, load_sentence_encoder
from helpers.tuning.evaluation import macro_f1

encoder = load_sentence_encoder(params.base_model, texts=texts.train.text, seed=params.seed)
if machine.kind in ("cuda", "xla"):
    encoder = encoder.to(machine.device)
words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
frozen = FunctionTransformer(lambda given: encode(encoder, [*given]))
linear = LogisticRegression(C=10, max_iter=1000)
models = {
    "the most frequent label": DummyClassifier(strategy="prior"),
    "a linear model on words": make_pipeline(words, linear),
    "a linear model on the frozen encoder": make_pipeline(frozen, Normalizer(), linear),
}
test_labels = texts.test.label.to_numpy()
rivals = {}
for name, model in models.items():
    model.fit(texts.train.text, texts.train.label)
    rivals[name] = macro_f1(test_labels, model.predict(texts.test.text))
encoder = encoder.cpu()
strongest = max(rivals, key=rivals.get)
tables.show([{"model": name, "macro F1": f1} for name, f1 in rivals.items()], "Test texts")

# %% [markdown]
# ## What is faster on this machine?
#
# The start is a stock `Trainer`. The batch is doubled while that is faster; then padding, precision, optimizer, loader workers and compilation are
# tried, each on top of what was kept. One thread of a CPU is timed in processor time, everything else by the wall clock.

# %%
from statistics import median

import matplotlib.pyplot as plt

run.use_method()
from helpers.tuning import ladder
from helpers.tuning.training import BATCH, EXAMPLES, RATE, load_task

task = load_task(params, texts, machine)
trained = sum(weight.numel() for weight in task.model.parameters() if weight.requires_grad)
print(f"{type(task.model).__name__}, {trained:,} weights, {len(texts.labels)} labels")
print(f"tokens of a training text: median {median(task.lengths):.0f}, at most {max(task.lengths)}")

minutes = 60 * params.tuning_minutes
climbed = ladder.read_or_make(
    lambda: ladder.climb(task, ladder.CLIMB_SHARE * minutes),
    list[ladder.Rung],
    run.path / "ladder.json",
    params.resume,
)
rows = []
for rung in climbed:
    changes = [f"{name}={value!r}" for name, value in rung.change.items()]
    rows.append({"change": rung.name, "TrainingArguments": ", ".join(changes), "verdict": rung.verdict})
tables.show(rows, "Changes, each on top of what was kept")

timed = [rung for rung in climbed[1:] if rung.ratios]
figure, axes = plt.subplots(figsize=(8, 0.45 * len(timed) + 1.8), layout="constrained")
for place, rung in enumerate(timed):
    middle = median(rung.ratios)
    kept = rung.outcome is ladder.Outcome.KEPT
    axes.barh(place, middle, color="tab:blue" if kept else "lightsteelblue")
    spread = [[middle - min(rung.ratios)], [max(rung.ratios) - middle]]
    axes.errorbar(middle, place, xerr=spread, color="0.3", capsize=3)
axes.set_yticks(range(len(timed)), [rung.name for rung in timed])
axes.invert_yaxis()
axes.axvline(1, color="0.4", linestyle="--")
axes.set(title=f"What is faster on {machine.device_name} (dark: kept)", xlabel="examples a second, times those before")
(run.path / "figures").mkdir(exist_ok=True)
figure.savefig(run.path / "figures" / "optimisations.png", dpi=120)

# %% [markdown]
# ## Which rate, and is it as good?
#
# A larger batch is often better only because its rate is higher. So the stock batch is trained with higher rates first, and the best of these runs is
# the reference. *Kept* means: on the dev texts the loss is shown to be at most 2 % above the reference's, and F1 at most 0.01 below. *Worse* means that
# one of the two is shown to be worse; *not decided*, that an interval allows both. Fewer than 300 dev texts decide nothing. Each run is trained once,
# so the intervals are over texts alone.

# %%
left = minutes - (time.monotonic() - began)
raced = ladder.read_or_make(
    lambda: ladder.race(task, climbed, run.path, seconds=left), ladder.Race, run.path / "race.json", params.resume
)
settings = raced.settings
whole = "the whole run" if raced.examples == task.examples else "a part of the whole run"
rows = []
for trial in raced.trials:
    row = {"batch": trial.settings[BATCH], "learning rate": f"{trial.settings[RATE]:.2g}"}
    row |= {"examples": f"x {trial.settings[EXAMPLES]}", "seconds": round(trial.seconds)}
    row |= {"dev loss": trial.dev_loss, "dev F1": trial.dev_f1}
    rows.append(row | {"loss beside the reference": trial.loss, "F1": trial.f1, "outcome": trial.outcome})
if rows:
    tables.show(rows, f"Runs; examples x 1 are {raced.examples:,} ({whole})")
print(f"{raced.outcome}: {raced.detail}")
print(f"settings that are used: {settings}")

# %% [markdown]
# ## Train with what was kept, and the verdict
#
# Where the runs above were whole, this is one of them. The weights with the least loss on the dev texts are kept. The verdict is the time to the quality
# of the stock batch at its best rate, and F1 on the test texts, which were not used for tuning.

# %%
from helpers.tuning.evaluation import f1_difference
from helpers.tuning.training import ClassifierTrainer, folder_of

trainer = ClassifierTrainer(task, settings, folder_of(settings, run.path, task.examples), task.examples)
say_changed(params, globals())
trainer.train(resume_from_checkpoint=params.resume)
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
print(trainer.advice())


def predict(trainer):
    """The label of each test text, as a trained model says it."""
    return trainer.logits("test").argmax(axis=1)


for line in trainer.unfinished():
    print(line)
after, f1 = macro_f1(test_labels, predict(trainer)), None
if settings != raced.reference:
    runs = []
    for chosen in (raced.reference, settings):
        trial = ClassifierTrainer(task, chosen, folder_of(chosen, run.path, raced.examples), raced.examples)
        trial.train(resume_from_checkpoint=params.resume)
        runs.append(predict(trial))
    f1 = f1_difference(test_labels, *runs)
    print(f"Yes: {raced.trials[-1].speed:.2f} times as fast to the quality of the stock batch at its best rate")
    print(f"test F1 {f1} beside it, over {len(test_labels):,} test texts of one run each")
else:
    rate = settings[RATE] / task.start[RATE]
    print(f"Not shown: {raced.detail.removesuffix('.')}. The stock batch is used at {rate:g} times the stock rate.")
print(f"test F1 {after:.3f}; {strongest} has {rivals[strongest]:.3f}")
if after < rivals[strongest]:
    print("The simple model is better: raise learning_rate or max_steps, give more rows, or use it.")

# %% [markdown]
# ## Save, reload, classify, carry away
#
# The saved model must give the logits of the one in memory. `python train.py texts.csv` (columns `text` and `label`) trains with the settings, and needs
# nothing of this notebook.

# %%
import copy

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from helpers.tuning.export import write_stock

trained_model = copy.deepcopy(task.model)  # the trained one is wrapped by what its precision needs
trained_model.load_state_dict({name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()})
trainer.save_model(str(run.path / "model"))
reloaded = AutoModelForSequenceClassification.from_pretrained(run.path / "model")
tokenizer = AutoTokenizer.from_pretrained(run.path / "model")
inputs = tokenizer(
    list(texts.test.text[:8]), padding=True, truncation=True, max_length=params.max_length, return_tensors="pt"
)
with torch.no_grad():
    ours, theirs = (model.eval()(**inputs).logits for model in (trained_model, reloaded))
torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
classify = pipeline("text-classification", model=reloaded, tokenizer=tokenizer, device="cpu")
text = texts.test.text.iloc[0]  # or any text in quotes
tables.show(classify(text, top_k=3, truncation=True, max_length=params.max_length), text)

for file in write_stock(task, settings, run.path / "stock"):
    print(file)

say_changed(params, globals())
results_file = run.results(
    machine,
    **trainer.results(),
    ladder=[{**vars(rung), "verdict": rung.verdict} for rung in climbed],
    race=raced,
    f1_over_reference=f1,
    data=texts.provenance | texts.counts(),
    model={"base_model": params.base_model, "trainable": trained},
    settings={"start": task.start, "reference": raced.reference, "tuned": settings},
    utilisation={"shares": trainer.shares, "advice": trainer.advice()},
    eval={"after": {"f1": after}, "baselines": {name: {"f1": value} for name, value in rivals.items()}},
    artifacts={"model": "model", "stock": "stock", "figures": "figures"},
)
print(results_file)

# %% [markdown]
# ## Next steps
#
# - **Your own texts**: set `data_source` to a `.csv` with `text` and `label`.
# - **Use the model elsewhere**: `pipeline("text-classification", "<output_dir>/model")`.
# - **Out of memory**: shorten `max_length` first, then lower the batch.
