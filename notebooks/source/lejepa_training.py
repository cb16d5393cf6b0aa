# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # A search over your own documents, with LeJEPA (GPU)
#
# At the end you have a **search over your folder** that combines the meaning of a question with its words, in a folder that works
# without this notebook, and an **embedding model** that was trained on your documents with LeJEPA. A verdict says what the search is
# worth against the stock model, and what the training adds.
#
# {picture: nDCG@10 of the stock model, of BM25 and of the whole search}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU. The TPU twin is
# `lejepa_training_tpu.ipynb`.
#
# {planned}
#
# **The default data** are 2,048 medical questions with their answers (`mteb/medical_qa`, public domain by MTEB's metadata, from web
# pages of the US National Institutes of Health). No account is needed. The hub cannot be reached from where this notebook is tested,
# so this default was not run by us; the same cells were run with files and with `data_source="sample"`.
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # A search over your own documents, with LeJEPA (TPU)
#
# At the end you have a **search over your folder** that combines the meaning of a question with its words, in a folder that works
# without this notebook, and an **embedding model** that was trained on your documents with LeJEPA. A verdict says what the search is
# worth against the stock model, and what the training adds.
#
# {picture: nDCG@10 of the stock model, of BM25 and of the whole search}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips). Without one it goes on
# with the GPU or the CPU. The first steps take long: XLA compiles them, once. The GPU twin is `lejepa_training.ipynb`.
#
# {planned}
#
# **The default data** are 2,048 medical questions with their answers (`mteb/medical_qa`, public domain by MTEB's metadata, from web
# pages of the US National Institutes of Health). No account is needed. The hub cannot be reached from where this notebook is tested,
# so this default was not run by us; the same cells were run with files and with `data_source="sample"`.
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers faiss-cpu bm25s wandb matplotlib

# %% [markdown]
# ## Your settings
#
# {own data} It may be a folder of `.md` and `.txt` files, one `.txt`, or a `.jsonl` or `.csv` with the columns `anchor` and `positive`
# (questions and answers), or `text` and perhaps `title`. A folder in BEIR's layout brings its own questions. Where a setting is 0, the
# recipe decides. Every setting is checked before anything is downloaded. Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY`
# into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.lejepa.parameters.EmbeddingParameters

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
run = RunFolder.claim("lejepa_training", params)
print(machine)
print(f"output     {run.path}")

# %% [markdown]
# ## Data
#
# Documents become passages of at most 180 words, and all of them are searchable. **Training** sees pairs of a question or a heading and
# its passage; where a passage has no heading, a short crop of it takes the heading's place. **Dev** questions choose, and **test**
# questions only test. Where questions or headings of the same kind train, dev and test are about other documents.

# %%
from helpers.lejepa import data

collection = data.load(params.data_source, num_samples=params.num_samples, seed=params.seed)
run.same_data(collection.source)
counts = {
    "documents": len({passage.document for passage in collection.passages}),
    "passages": len(collection.passages),
    "training pairs": len(collection.training),
    f"dev {collection.kind}": len(collection.dev),
    f"test {collection.kind}": len(collection.test),
}
tables.show([counts], collection.source)
print(collection.passages[0].text[:400])

# %% [markdown]
# ## The method, in one file
#
# Two views of a text should have the same embedding. One embedding for all texts would do that, too. **SIGReg** prevents it: it
# asks that the embeddings of a batch look like draws from an isotropic Gaussian, in many random directions. A third, contrastive term
# asks that a view is closer to its own text than to others.
#
# $$\mathcal{L} = (1 - w)\,\mathrm{invariance} + w\,\mathrm{SIGReg} + c\,\mathrm{contrastive}$$
#
# Change a line below and run all cells again: your version is what trains, in a folder of its own. The cell after it compares the fast form
# of SIGReg, with its gradient in closed form, with the formula as it stands.

# %% tags=["method"]
# method: helpers/lejepa/loss.py

# %%
import torch

run.use_method()
from helpers.lejepa.loss import LeJEPALoss, SIGReg, plain_sigreg, views

sigreg = SIGReg(seed=params.seed)
embeddings_NK = torch.randn(64, 32, dtype=torch.float64)
plain = plain_sigreg(embeddings_NK, sigreg.slices(32, step=0).double())
fast = sigreg(embeddings_NK[None], step=0)
print(f"plain {plain:.6f}, fast {fast:.6f}; a Gaussian has {sigreg.floor:.4f} on average")
torch.testing.assert_close(plain, fast, rtol=1e-6, atol=0)

# %% [markdown]
# ## What costs nothing
#
# The stock model embeds all passages once. Beside it stand BM25, which counts words, and two closed forms that cost seconds: the
# documents' mean subtracted, and mild whitening. **In hybrid search** means the score with BM25 and with feedback from the best
# results; its weights were chosen once, on other collections. The table is over the dev questions.

# %%
from helpers.lejepa.evaluation import STOCK, TRAINED, Judge, choose, compare
from helpers.lejepa.model import GaussianEmbeddingGemma, encode, load_backbone, principal_head
from helpers.lejepa.parameters import chosen

base_model = chosen(params.base_model, machine.kind)
dev, test = Judge(collection, collection.dev), Judge(collection, collection.test)
texts = dev.texts
backbone = load_backbone(base_model, max_seq_length=params.max_seq_length, seed=params.seed, texts=texts)
if machine.kind == "cuda":
    backbone = backbone.to("cuda")
embedded = {STOCK: encode(backbone, texts, "document")}
heads = {
    "mean subtracted": principal_head(embedded[STOCK], centred=True),
    "mild whitening": principal_head(embedded[STOCK], centred=True, power=0.25),
}
asked = {judge: encode(backbone, judge.asked, "query") for judge in (dev, test) if judge.asked}
measured = {judge: {STOCK: judge.measure(asked[judge], embedded[STOCK])} for judge in asked}
for name, (weight_KD, bias_K) in heads.items():
    turned = [x @ weight_KD.numpy().T + bias_K.numpy() for x in (embedded[STOCK], *asked.values())]
    embedded[name] = turned[0]
    for judge, questions_QK in zip(asked, turned[1:], strict=True):
        measured[judge][name] = judge.measure(questions_QK, turned[0])


def means(judge):
    rows = [{"model": "BM25 alone", "by itself": judge.ndcg(judge.lexical_QN).mean(), "in hybrid search": ""}]
    for name, found in measured[judge].items():
        rows.append({"model": name, "by itself": found["dense"].mean(), "in hybrid search": found["hybrid"].mean()})
    return rows


if dev in measured:
    tables.show(means(dev), f"{base_model}: nDCG@10 on {len(dev.asked)} dev {collection.kind}")

# %% [markdown]
# ## Model and plan
#
# LeJEPA goes on from the stock model with a linear head after it, on principal axes: at the start the two rank alike, as far as
# `output_dim` allows. The first table says what will run and why, the second what it is expected to take.

# %%
from helpers.lejepa.parameters import recipe
from helpers.lejepa.workload import workload
from helpers.plan import forecast as forecasts
from helpers.plan import settings

model = GaussianEmbeddingGemma(backbone, *principal_head(embedded[STOCK], params.output_dim))
loss = LeJEPALoss(
    model, sigreg_weight=params.sigreg_weight, contrastive_weight=params.contrastive_weight, seed=params.seed
)
step = workload(loss, base_model, params.train_length)
plan = settings.plan(
    recipe(len(collection.training), params.train_length, machine.kind),
    step,
    machine,
    batch_size=params.batch_size,
    learning_rate=params.learning_rate,
    max_steps=params.max_steps,
)
machine = plan.on(machine)
forecast = forecasts.here(step, plan, machine)
tables.show(plan.rows())
tables.show(forecast.rows())

# %% [markdown]
# ## Train
#
# The rows are plain pairs of texts, and no text is twice in a batch. The log has each term of the loss, with its weight. The second
# table says which share of the gradient each term has: a small share of SIGReg is enough to keep embeddings from collapsing. The last
# two say what the run cost, as measured: `mfu` is the share of the named datasheet peak that was used. On a TPU `compiles_after_warmup` and
# `host_syncs_per_step` must be 0: anything else means that shapes change or that values leave the chip at every step.

# %%
from helpers.lejepa.training import new_trainer, pairs

rows = pairs(collection, views, plan.max_steps * plan.batch_size, params.seed)
trainer = new_trainer(model, loss, rows, params, plan, machine, run.path)
tables.show([{"column": name, "text": text[:300]} for name, text in rows[0].items()], "The views of one text")
columns = [trainer.data_collator.preprocess_fn(rows[name][:16]) for name in rows.column_names]
columns = [{k: v.to(model.device) if torch.is_tensor(v) else v for k, v in each.items()} for each in columns]
tables.show([loss.gradient_shares(columns)], "Share of the gradient at the start")
trainer.train(resume_from_checkpoint=params.resume)
cost = trainer.results()
tables.show(trainer.meter.rows(cost["train"], cost.get("xla")))
tables.show(forecast.beside(cost["train"]))

# %% [markdown]
# ## Is it any good?
#
# The verdict has two rows: what training adds to the same search, and what the whole search adds to the stock model. The test questions
# chose nothing. The intervals are a paired bootstrap over them: where 0 lies inside, the two are not told apart. Training imitated
# headings, so that a test by headings flatters the trained model; it is never chosen by them.

# %%
import pandas

embedded[TRAINED] = encode(trainer.model, texts, "document")
for judge in measured:
    measured[judge][TRAINED] = judge.measure(encode(trainer.model, judge.asked, "query"), embedded[TRAINED])
kept, reason = choose(measured.get(dev, {}), collection.kind)
verdicts = []
if test in measured:
    found = measured[test]
    verdicts = [
        compare("what training adds to the same search", found[TRAINED]["hybrid"], found[STOCK]["hybrid"]),
        compare("the whole search over the stock model", found[kept]["hybrid"], found[STOCK]["dense"]),
    ]
    tables.show(means(test), f"nDCG@10 on {len(test.asked)} test {collection.kind}")
    tables.show([verdict.row() for verdict in verdicts], "Verdict")
    drawn = pandas.DataFrame(means(test)).set_index("model").apply(pandas.to_numeric, errors="coerce")
    title = f"Search by {len(test.asked)} test {collection.kind}"
    axes = drawn.plot.barh(figsize=(8, 3.2), title=title, xlabel="nDCG@10", ylabel="", xlim=(0, 1))
    axes.invert_yaxis()
else:
    print("These data have no questions and no headings, so nothing can be measured. The default search is saved.")
print(f"kept: {kept}, in hybrid search ({reason})")

# %% [markdown]
# ## Save
#
# `model/` is what LeJEPA trained. `search/` holds all that the search needs: its model, a FAISS index, a BM25 index, the passages and
# `search.py`, which works without this package.

# %%
from sentence_transformers import SentenceTransformer

from helpers.lejepa import search

search.export(trainer.model, run.path / "model")
reloaded = SentenceTransformer(str(run.path / "model"), device="cpu")
difference = (
    abs(encode(reloaded, texts[:8], "document") - embedded[TRAINED][:8]).max() / abs(embedded[TRAINED][:8]).max()
)
print(f"the reloaded model differs by {difference:.1e} of the largest value")
if difference > 1e-2:
    raise RuntimeError(f"the model saved in {run.path / 'model'} differs from the one in memory")
kept_model = {TRAINED: trainer.model, STOCK: backbone}.get(kept) or GaussianEmbeddingGemma(backbone, *heads[kept])
if collection.kind == "headings":  # the search reads headings, too
    embedded[kept] = encode(kept_model, [passage.text for passage in collection.passages], "document")
search.save(run.path / "search", kept_model, collection.passages, embedded[kept])
results_file = run.results(
    machine,
    **cost,
    forecast=forecast.results(),
    data={**collection.provenance, "kind": collection.kind, "train_examples": len(collection.training), **counts},
    model={"base_model": base_model, "output_dim": model.get_embedding_dimension()},
    eval={
        name: {key: float(value.mean()) for key, value in found.items()}
        for name, found in measured.get(test, {}).items()
    },
    evidence={"kept": kept, "reason": reason, "verdicts": [verdict.row() for verdict in verdicts]},
    artifacts={"model": "model", "search": "search"},
)
print(results_file)

# %% [markdown]
# ## Search your documents
#
# Type a question and run the cell.

# %%
# @title Search {display-mode: "form"}
question = ""  # @param {type:"string"}
question = question or (collection.test[0].text if collection.test else collection.passages[0].text[:60])
results = search.load(run.path / "search").search(question)
tables.show([{"score": score, "document": name, "passage": text[:300]} for score, name, text in results], question)

# %% [markdown]
# ## Next steps
#
# - **Take the search with you**: download `search/` and run `python search.py "a question"` in it.
# - **Take the model with you**: `SentenceTransformer("<output_dir>/model")`; its dimensions are sorted, so `truncate_dim=128` keeps the
#   most important ones.
# - **Train on questions**: 1,000 real questions with their documents teach more than headings do. Give a `.jsonl` with `anchor` and
#   `positive`.
# - **Another method**: change `views` or the weights of the loss in the method's cell.
