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
# Gaussian (SIGReg), so that every dimension is used. At the end you have retrieval quality before and after on the same
# queries, beside the untrained backbone and the usual contrastive training for as many steps, an isotropy report, a search
# index, and a model that `SentenceTransformer("...")` loads.
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU. **Run all** and wait. The
# TPU twin is `lejepa_training_tpu.ipynb`; it has the same cells.
#
# {planned}
#
# **No account is needed.** `base_model="auto"` takes EmbeddingGemma where its licence is accepted, `HF_TOKEN` is among the
# runtime's secrets and the device has bf16; else mpnet, or MiniLM on a CPU. It says which, and why.
#
# Disconnected? Run all again: with the same `output_dir` it goes on from the last checkpoint, to the same weights.

# %% [markdown] tags=["tpu"]
# # LeJEPA text embeddings (TPU)
#
# Trains a text-embedding model with **LeJEPA**: views of one text are drawn together, and all texts towards an isotropic
# Gaussian (SIGReg), so that every dimension is used. At the end you have retrieval quality before and after on the same
# queries, beside the untrained backbone and the usual contrastive training for as many steps, an isotropy report, a search
# index, and a model that `SentenceTransformer("...")` loads.
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips are used).
# Without one it warns and goes on with the GPU or the CPU. The first steps take long: XLA compiles them, once. Texts are
# padded to one length, since each new one would compile anew. The GPU twin is `lejepa_training.ipynb`; it has the same cells.
#
# {planned}
#
# **No account is needed.** `base_model="auto"` takes EmbeddingGemma where its licence is accepted, `HF_TOKEN` is among the
# runtime's secrets and the device has bf16; else mpnet, or MiniLM on a CPU. It says which, and why.
#
# Disconnected? Run all again: with the same `output_dir` it goes on from the last checkpoint, to the same weights.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers faiss-cpu wandb matplotlib

# %% [markdown]
# ## Parameters
#
# `data_source` is a Hub data set, a path to your own texts (`.jsonl` or `.csv` with anchor and positive, or text; a `.txt`;
# a folder of `.txt` and `.md`), or `"sample"`: documentation strings of Python, which need no network. Zeros mean "what the
# recipe says". Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.
#
# Your own folder of documents: `data_source="my/documents"`, nothing else. Two crops of each are the views, between
# `crop_min_share` and `crop_max_share` of its words.

# %% tags=["parameters"]
# parameters: helpers.lejepa.parameters.EmbeddingParameters

# %% [markdown]
# ## Check and look around
#
# Every parameter is checked before anything is downloaded, the output folder is claimed for this run, and the machine is
# reported with the reason for each choice.

# %%
from helpers import parameters, run_folder, runtime, secrets, tables
from helpers.lejepa.backbone import chosen
from helpers.lejepa.parameters import EmbeddingParameters

secrets.provide("HF_TOKEN")
params = parameters.check(EmbeddingParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
print(machine)
params, reason = chosen(params, machine)
print(f"backbone   {params.base_model}: {reason}")
folder = run_folder.claim("lejepa_training", params)
print(f"output     {folder.resolve()}")

# %% [markdown]
# ## Data
#
# Rows first as they are. No text is in both splits, in any column. The held-out rows choose the best checkpoint; the test
# is a benchmark of its own where `benchmark` names a folder in BEIR's layout. Your own texts are a folder of `.txt` and `.md`
# files, or a file of rows, with `data_source="questions.jsonl"`:
#
# ```
# {"anchor": "how long is the warranty", "positive": "Defects are repaired free of charge for two years."}
# ```

# %%
from helpers.lejepa import experiment

corpus = experiment.load_corpus(params)
texts = corpus.texts
run_folder.same_data(folder, texts.source)
print(f"{len(texts.train)} training and {len(texts.validation)} validation {texts.kind} from {texts.source}")
print(
    f"{texts.duplicates_removed} duplicates, {texts.empty_removed} empty and {texts.overlaps_removed} overlapping removed"
)
print(f"test: {corpus.test.name}, {len(corpus.test.queries)} queries, {len(corpus.test.corpus)} documents")
tables.show([{"column": column, "text": text[:400]} for column, text in texts.train[0].items()], "One row")

# %% [markdown]
# ## Model
#
# The pretrained backbone without its normalisation, then a linear head that is set in closed form from views of the training
# texts: centred, scaled to unit variance, damped where views of one text differ (`head_within`), and whitened in part
# (`head_power`: 0 leaves the geometry, 1 makes all directions equal). SIGReg then starts where its gradient is not that of a
# collapsed model, and needs no projector that is thrown away later. The first `freeze_layers` layers stay as they are.
#
# Of the head: `kept_variance` is the share of the backbone's variance that it lets through (1 is all of it), `effective_rank`
# how many dimensions of its output carry these texts, `scale` what the output was multiplied by for a variance of 1.

# %%
model = experiment.new_backbone(params, corpus)
fitted = experiment.set_head(model, params, corpus)
backbone = experiment.without_head(model)
sizes = experiment.parameter_counts(model)
tables.show([sizes], f"{params.base_model}, with a head of {params.output_dim} dimensions")
tables.show([vars(fitted)], "The closed-form head")

# %% [markdown]
# ## Plan
#
# What will run, and why; then what it is expected to take, and what that rests on. Memory is counted: the training step
# runs once on tensors without numbers, with every view as long as it may be; shorter texts take less. Without a
# `calibration.json` of this machine (`hardware_tuning` writes one) time is a datasheet's bound, on a CPU it is not known.
# The same table with what was measured comes after training.
#
# SIGReg and the contrastive term are about a whole batch, so that a smaller one would be another objective. Where the batch
# does not fit, `per_device_batch_size` texts at a time are embedded, in `gradient_accumulation_steps` chunks (gradient
# caching): loss and gradient stay exactly those of the whole batch, memory is that of a chunk, and each chunk is embedded twice.

# %%
from helpers import plan as planner
from helpers.lejepa.parameters import recipe
from helpers.planning import forecast as forecasts

step = experiment.workload(model, corpus, params)
plan = planner.plan(
    recipe(len(texts.train), params.views(corpus.documents), params.view_length),
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
# One row as its views, with the prompt that goes before each.

# %%
from helpers.lejepa.model import column_prompts

trainer = experiment.lejepa_trainer(model, corpus, params, plan, machine, folder)
prompts = column_prompts(model, trainer.train_dataset.column_names)
views = trainer.train_dataset[0].items()
tables.show([{"view": column, "text": prompts.get(column, "") + text[:200]} for column, text in views])

# %% [markdown]
# ## Before training
#
# The backbone as it came, and with the closed-form head. **Effective rank** says how many dimensions carry the texts;
# **SIGReg excess** is what lies above the floor that an exact Gaussian has (1.0525, not 0). The floor alone proves little in
# hundreds of dimensions: random slices of half a Gaussian look Gaussian too.

# %%
from helpers.lejepa import evaluation

untrained, reports = {}, {}
for name, each in ((experiment.UNTRAINED, backbone), (experiment.HEAD_ONLY, model)):
    untrained[name], reports[name] = experiment.measure(each, corpus, params, machine)
tables.show(evaluation.table(untrained, {}))

# %% [markdown]
# ## Train
#
# The best weights by nDCG@10 on the held-out rows are kept and are the ones loaded at the end; `patience` evaluations without
# improvement end the run.

# %%
import copy

before = copy.deepcopy(experiment.on_cpu(model))
output = trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `mfu` is the share of the named datasheet peak that was used.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. `compiles_after_warmup` and `host_syncs_per_step` must be 0: anything
# else means that shapes change or that values leave the chip at every step.

# %%
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
tables.show(forecast.beside(measured["train"]))

# %% [markdown]
# ## Against contrastive training
#
# The same backbone with `MultipleNegativesRankingLoss` on the same rows for as many steps. Skip it with
# `compare_contrastive=False`; `further_seeds=2` repeats both for the spread, without which a difference means little.

# %%
after, reports[experiment.LEJEPA] = experiment.row(trainer, corpus, params, machine)
rows = {params.seed: {experiment.LEJEPA: after}}
if params.compare_contrastive:
    rows[params.seed][experiment.CONTRASTIVE] = experiment.train_contrastive(
        backbone, corpus, params, plan, machine, folder / "contrastive"
    )
rows |= experiment.further_seeds(params, corpus, plan, machine, folder)
tables.show(evaluation.table(untrained, rows))

# %% [markdown]
# ## Isotropy
#
# Left: how evenly variance is spread over directions, beside what as many draws from a Gaussian give. Right: squared lengths,
# which for a Gaussian follow chi-squared.

# %%
from helpers.lejepa.isotropy import plot_isotropy

figure = plot_isotropy(reports, folder / "figures" / "isotropy.png", title=f"Test documents ({corpus.test.name})")

# %% [markdown]
# ## The same queries before and after
#
# The three nearest documents of some test queries by cosine, with the closed-form head before training and with the trained
# model. A * stands before a document that answers the query.

# %%
shown = {corpus.test.queries[name]: corpus.test.relevant[name] for name in list(corpus.test.queries)[:4]}
tables.show(evaluation.before_after(before, trainer.model, shown, corpus.test.corpus))

# %% [markdown]
# ## Save, reload, search
#
# The saved model must embed as the one in memory does, but for rounding where that one computes in half precision. The index
# is FAISS, exact, on the CPU also beside a TPU, saved without pickle.

# %%
from sentence_transformers import SentenceTransformer

from helpers.lejepa.retrieval import TextIndex

trainer.save_model(str(folder / "model"))
reloaded = SentenceTransformer(str(folder / "model"), device="cpu")
difference = experiment.same_embeddings(trainer.model, reloaded, list(corpus.test.corpus.values())[:8])
print(f"the reloaded model differs by {difference:.1e} of the largest value")
if difference > (1e-3 if machine.precision == "fp32" else 5e-2):
    raise RuntimeError(f"the model saved in {folder / 'model'} differs from the trained one")

# %%
documents = corpus.test.corpus
index = TextIndex(reloaded, list(documents), list(documents.values()))
found, scores = index.search(reloaded, [params.query], 3)
hits = [(f"{score:.3f}", documents[name][:200]) for name, score in zip(found[0], scores[0], strict=True)]
tables.show([{"cosine": cosine, "document": " ".join(text.split())} for cosine, text in hits], params.query)
index.save(folder / "index")

# %%
results_file = run_folder.write_results(
    "lejepa_training",
    params,
    machine,
    **measured,
    forecast=forecast.results(),
    data={
        **texts.provenance,
        "kind": texts.kind,
        "train_examples": len(texts.train),
        "eval_examples": len(texts.validation),
        "test": corpus.test.name,
    },
    model={"base_model": params.base_model, **sizes, "head": vars(fitted)},
    eval={"before": untrained[experiment.HEAD_ONLY], "after": after, "baselines": untrained},
    comparison=rows,
    artifacts={"model": "model", "index": "index", "figures": "figures"},
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Use the model elsewhere**: `SentenceTransformer("<output_dir>/model")`, with `encode_query` and `encode_document`.
#   `faiss.read_index("<output_dir>/index/index.faiss")` holds the documents at length 1, in the order of `index.json`.
# - **Your own documents**: set `data_source` to their folder. Crops are the views, no questions are needed.
# - **A larger batch**: raise `batch_size`. What does not fit is embedded in chunks, with the same result.
# - **Slow**: shorten `train_length`, or leave more of the first layers as they are (`freeze_layers`); what each gave is
#   measured in `docs/lejepa.md`.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all.
