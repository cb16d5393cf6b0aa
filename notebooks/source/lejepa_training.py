# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # LeJEPA text embeddings (GPU)
#
# Trains a text-embedding model with **LeJEPA**: views of one text are drawn together, and all texts towards an isotropic
# Gaussian (SIGReg), so that every dimension is used. At the end it says whether the model is better than what you
# started with and how sure that is; you have a search over your texts before and after, and a model that
# `SentenceTransformer("...")` loads: the trained one, or the start where training was not better.
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU. The TPU twin is
# `lejepa_training_tpu.ipynb`.
#
# {planned}
#
# **No account is needed.** `base_model="auto"` takes EmbeddingGemma where its licence is accepted, `HF_TOKEN` is among the
# runtime's secrets and the device has bf16; else mpnet, or MiniLM on a CPU. It says which, and why.
#
# Disconnected? Run all again: it continues from the last checkpoint in `output_dir` and ends with the same weights.

# %% [markdown] tags=["tpu"]
# # LeJEPA text embeddings (TPU)
#
# Trains a text-embedding model with **LeJEPA**: views of one text are drawn together, and all texts towards an isotropic
# Gaussian (SIGReg), so that every dimension is used. At the end it says whether the model is better than what you
# started with and how sure that is; you have a search over your texts before and after, and a model that
# `SentenceTransformer("...")` loads: the trained one, or the start where training was not better.
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips).
# Without one it goes on with the GPU or the CPU. The first steps take long: XLA compiles them, once. The GPU twin
# is `lejepa_training.ipynb`.
#
# {planned}
#
# **No account is needed.** `base_model="auto"` takes EmbeddingGemma where its licence is accepted, `HF_TOKEN` is among the
# runtime's secrets and the device has bf16; else mpnet, or MiniLM on a CPU. It says which, and why.
#
# Disconnected? Run all again: it continues from the last checkpoint in `output_dir` and ends with the same weights.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers faiss-cpu wandb matplotlib

# %% [markdown]
# ## Parameters
#
# {own data} It is a folder of `.txt` and `.md`, a `.txt`, or a `.jsonl` or `.csv` with anchor and positive (perhaps negative),
# or text. A folder of documents needs nothing else: two crops of each are the views, between `crop_min_share` and
# `crop_max_share` of its words. A zero takes the recipe's value. Tokens never belong here: put `HF_TOKEN` or
# `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.lejepa.parameters.EmbeddingParameters

# %% [markdown]
# ## Check the parameters and the machine
#
# Every parameter is checked before anything is downloaded.

# %%
from helpers import parameters
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.run.run_folder import RunFolder
from helpers.show import tables

secrets.provide("HF_TOKEN")
params = parameters.check(EmbeddingParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
print(machine)

from helpers.lejepa.model import chosen  # only now: the device is known

params, reason = chosen(params, machine)
print(f"backbone   {params.base_model}: {reason}")
run = RunFolder.claim("lejepa_training", params)
folder = run.path
print(f"output     {folder}")

# %% [markdown]
# ## Data
#
# Rows first as they are. No text is in two splits, in any column. The validation rows choose the checkpoint and the model
# that is exported; the test chooses nothing: rows held out, or a folder in BEIR's layout (`benchmark`). Both search among
# 1,000 texts or more where there are as many. A file of rows looks so:
#
# ```
# {"anchor": "how long is the warranty", "positive": "Defects are repaired free of charge for two years."}
# ```

# %%
from helpers.lejepa import experiment

corpus = experiment.load_corpus(params)
texts = corpus.texts
run.same_data(texts.source)
print(
    f"{len(texts.train)} training, {len(texts.validation)} validation, {len(texts.test)} test {texts.kind}: {texts.source}"
)
print(
    f"{texts.duplicates_removed} duplicates, {texts.empty_removed} empty and {texts.overlaps_removed} overlapping removed"
)
print(f"test: {corpus.test.name}, {len(corpus.test.queries)} queries, {len(corpus.test.corpus)} documents")
tables.show([{"column": column, "text": text[:400]} for column, text in texts.train[0].items()], "One row")

# %% [markdown]
# ## Model
#
# The pretrained backbone without its normalisation, then a linear head in closed form from views of the training texts:
# centred, scaled to unit variance, damped where views of one text differ (`head_within`), and whitened as far as `head_power`
# says. SIGReg then starts where its gradient is not that of a collapsed model.
#
# `kept_variance` is the share of the backbone's variance that the head lets through, `effective_rank` how many dimensions of
# its output carry these texts, `scale` what the output was multiplied by for a variance of 1.

# %%
model = experiment.new_backbone(params, corpus)
fitted = experiment.set_head(model, params, corpus)
backbone = experiment.without_head(model)
sizes = experiment.parameter_counts(model)
tables.show([sizes], f"{params.base_model}, with a head of {model.get_embedding_dimension()} dimensions")
tables.show([vars(fitted)], "The closed-form head")

# %% [markdown]
# ## Plan
#
# What will run, and why; then what it is expected to take, and what that rests on. Memory is counted with every view as long
# as it may be. Time rests on what others published, on a CPU
# it is not known.
#
# SIGReg and the contrastive term are about a whole batch. One that does not fit is embedded in `gradient_accumulation_steps`
# chunks of `per_device_batch_size` texts (gradient caching): loss and gradient stay exactly those of the whole batch.

# %%
from helpers.lejepa.parameters import recipe
from helpers.plan import forecast as forecasts
from helpers.plan import settings as planner

step = experiment.workload(model, corpus, params)
plan = planner.plan(
    recipe(len(texts.train), params.columns(texts.kind), params.view_length),
    step,
    machine,
    batch_size=params.batch_size,
    learning_rate=params.learning_rate,
    max_steps=params.max_steps,
)
tables.show(plan.rows())

# %%
machine = plan.on(machine)
forecast = forecasts.here(step, plan, machine)
tables.show(forecast.rows())

# %% [markdown]
# ## What the loss sees
#
# One row as its views, with the prompt before each. A hard negative is no view: it is one more text for SIGReg and one more
# candidate for the contrastive term.

# %%
from helpers.lejepa.model import column_prompts

trainer = experiment.lejepa_trainer(model, corpus, params, plan, machine, folder)
prompts = column_prompts(model, trainer.train_dataset.column_names)
views = trainer.train_dataset[0].items()
tables.show([{"view": column, "text": prompts.get(column, "") + text[:200]} for column, text in views])

# %% [markdown]
# SIGReg in plain code: project all texts of a view on random directions, and compare their characteristic function with a
# Gaussian's at `n_points` places from 0 to `t_max`. What trains has the gradient in closed form; the values are the same.

# %%
import torch

from helpers.lejepa.sigreg import SIGReg

sigreg = SIGReg(t_max=params.t_max, n_points=params.n_points, num_slices=params.num_slices, seed=params.seed)
embeddings_VNK = torch.randn(2, 64, 32, dtype=torch.float64)  # views, texts, dimensions
projection_VNM = embeddings_VNK @ sigreg.slices(32, step=0).T.double()
t = torch.linspace(0, params.t_max, params.n_points, dtype=torch.float64)
angle_TVNM = t[:, None, None, None] * projection_VNM
gaussian_T = (-(t**2) / 2).exp()
distance_TVM = (angle_TVNM.cos().mean(2) - gaussian_T[:, None, None]) ** 2 + angle_TVNM.sin().mean(2) ** 2
plain = 64 * 2 * torch.trapezoid(distance_TVM.mean((1, 2)) * gaussian_T, t)
fast = sigreg(embeddings_VNK, 0)
print(f"plain {plain:.6f}, fast {fast:.6f}; an exact Gaussian has {sigreg.floor:.4f} on average")
torch.testing.assert_close(plain, fast, rtol=1e-6, atol=0)

# %% [markdown]
# ## Before training
#
# The backbone as it came, and with the closed-form head.

# %%
import copy

from helpers.lejepa import evaluation

models = {experiment.UNTRAINED: backbone, experiment.HEAD_ONLY: copy.deepcopy(experiment.on_cpu(model))}
measured = {name: experiment.measure(each, corpus, params, machine) for name, each in models.items()}
untrained = {name: found.values for name, found in measured.items()}
tables.show(evaluation.table(untrained, {}))

# %% [markdown]
# ## Train
#
# The best weights by nDCG@10 on the validation rows are kept and are the ones loaded at the end, and that may be step 0;
# `patience` evaluations without improvement end the run. In the study of `docs/lejepa.md` training gained beyond the head with
# word vectors from nothing, not with layers, nor from a retrieval model.

# %%
output = trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `mfu` is the share of the named datasheet peak that was used.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. `compiles_after_warmup` and `host_syncs_per_step` must be 0: anything
# else means that shapes change or that values leave the chip at every step.

# %%
cost = trainer.results()
tables.show(trainer.meter.rows(cost["train"], cost.get("xla")))
tables.show(forecast.beside(cost["train"]))

# %% [markdown]
# ## Against contrastive training
#
# The same backbone with `MultipleNegativesRankingLoss` on the same rows for as many steps, hard negatives included. Skip it
# with `compare_contrastive=False`. The second table cuts the embeddings to
# their first numbers, as `truncate_dim` does.

# %%
trainers = {experiment.LEJEPA: trainer}
if params.compare_contrastive:
    trainers[experiment.CONTRASTIVE] = experiment.train_contrastive(
        backbone, corpus, params, plan, machine, folder / "contrastive"
    )
measured |= {name: experiment.measure_trained(each, corpus, params, machine) for name, each in trainers.items()}
rows = {params.seed: {name: measured[name].values for name in trainers}}
tables.show(evaluation.table(untrained, rows))
tables.show(evaluation.table(untrained, rows, evaluation.BY_DIMENSION))

# %% [markdown]
# ## Better than what you started with?
#
# The model with the best nDCG@10 on the validation queries is exported, and that may be the start or the contrastive one.
# What it is worth is told on the test queries, which chose nothing. The intervals are a paired bootstrap over those queries:
# where 0 lies inside, the two models are not told apart.

# %%
from helpers.lejepa import evidence

models |= {name: each.model for name, each in trainers.items()}
exported, scores = experiment.choose(models, corpus, machine)
verdicts = experiment.verdicts(measured)
said = evidence.paragraph(exported, experiment.UNTRAINED, list(trainers), scores, verdicts)
tables.show([vars(verdict) for verdict in verdicts], "nDCG@10 on the test queries, 95 % intervals")
print(said)

# %% [markdown]
# ## Save and reload
#
# The saved model must embed as the one in memory does, but for rounding where that one computes in half precision. Its card
# holds the evidence.

# %%
from sentence_transformers import SentenceTransformer

experiment.export(models[exported], folder / "model", said, measured, corpus, params.base_model)
reloaded = SentenceTransformer(str(folder / "model"), device="cpu")
difference = experiment.same_embeddings(models[exported], reloaded, list(corpus.test.corpus.values())[:8])
print(f"the reloaded model differs by {difference:.1e} of the largest value")
if difference > (1e-3 if machine.precision == "fp32" else 5e-2):
    raise RuntimeError(f"the model saved in {folder / 'model'} differs from the one in memory")

# %% [markdown]
# ## Search your texts, before and after
#
# Type a query and run the last of these cells: the ten nearest texts, by the backbone as it came and by the exported model.
# The index is FAISS's exact one.

# %%
from helpers.lejepa.retrieval import side_by_side

found = experiment.searchable(params, corpus)
indexes = {"before": experiment.index(backbone, found, machine), "after": experiment.index(reloaded, found, machine)}
indexes["after"].save(folder / "index")

# %%
# @title Search {display-mode: "form"}
ask = ""  # @param {type:"string"}
question = ask or params.query
tables.show(side_by_side(indexes, question), f"{question} ({len(found)} texts)")

# %%
results_file = run.results(
    machine,
    **cost,
    forecast=forecast.results(),
    data={
        **texts.provenance,
        "kind": texts.kind,
        "train_examples": len(texts.train),
        "eval_examples": len(texts.validation),
        "test_examples": len(texts.test),
        "test": corpus.test.name,
    },
    model={"base_model": params.base_model, **sizes, "head": vars(fitted)},
    eval={
        "before": untrained[experiment.HEAD_ONLY],
        "after": measured[experiment.LEJEPA].values,
        "baselines": untrained,
    },
    comparison=rows,
    evidence={"exported": exported, "chosen_by": scores, "says": said, "verdicts": [vars(each) for each in verdicts]},
    artifacts={"model": "model", "index": "index"},
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Use the model elsewhere**: `SentenceTransformer("<output_dir>/model")`, with `encode_query` and `encode_document`;
#   `truncate_dim=256` for shorter embeddings.
#   `faiss.read_index("<output_dir>/index/index.faiss")` holds the texts in the order of `index.json`.
# - **Slow**: shorten `train_length`, or freeze more layers (`freeze_layers`).
