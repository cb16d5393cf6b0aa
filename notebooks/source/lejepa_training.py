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
# You leave with a **search** in a folder that works without this notebook, and an **embedding model** that was trained on your texts with LeJEPA. The
# search combines the meaning of a question with its words, in any script. It takes one of two things:
#
# - **Past questions with their answers** (a help desk, an FAQ, tickets): a `.csv` or `.jsonl` with the columns `question` and `answer`. The model learns
#   from them, and the search finds them, too.
# - **A folder of documents** (`.md`, `.txt`, `.rst`, `.html`, `.pdf`, `.docx`): the model learns which heading belongs to which text.
#
# Some questions are for the test alone: a verdict says whether the search beats the strongest simple method.
#
# {picture: nDCG@10 of the stock model, of BM25 and of the whole search}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*), or the CPU. Press **Run all**.
#
# **The default data** are 2,048 medical questions with their answers (`mteb/medical_qa`, public domain by MTEB's metadata). We ran these cells with other
# data.
#
# If you are disconnected, press **Run all** again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so
# set `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # A search over your own documents, with LeJEPA (TPU)
#
# You leave with a **search** in a folder that works without this notebook, and an **embedding model** that was trained on your texts with LeJEPA. The
# search combines the meaning of a question with its words, in any script. It takes one of two things:
#
# - **Past questions with their answers** (a help desk, an FAQ, tickets): a `.csv` or `.jsonl` with the columns `question` and `answer`. The model learns
#   from them, and the search finds them, too.
# - **A folder of documents** (`.md`, `.txt`, `.rst`, `.html`, `.pdf`, `.docx`): the model learns which heading belongs to which text.
#
# Some questions are for the test alone: a verdict says whether the search beats the strongest simple method.
#
# {picture: nDCG@10 of the stock model, of BM25 and of the whole search}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips), else the GPU or the CPU. Press
# **Run all**. XLA compiles the first steps, which takes long.
#
# **The default data** are 2,048 medical questions with their answers (`mteb/medical_qa`, public domain by MTEB's metadata). We ran these cells with other
# data.
#
# If you are disconnected, press **Run all** again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so
# set `keep_in` (in Colab: `drive`).

# %% [markdown]
# ## Your settings
#
# {own data} A table (`.csv`, `.tsv`, `.jsonl`, `.parquet`) has `question` and `answer` (or `anchor` and `positive`), `text` and `category`, or `text` alone. A
# folder may hold documents and tables. 0 = choose for me. Never paste API keys here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.lejepa.parameters.EmbeddingParameters

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers faiss-cpu bm25s beautifulsoup4 pypdf python-docx charset-normalizer scipy scikit-learn wandb matplotlib

# %%
from helpers import parameters
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.notebook.settings import say_changed
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
# Documents are divided into passages of at most as many tokens as the model reads, so nothing is cut off. The questions are divided into training, dev
# (they choose the settings of the search) and test.

# %%
from helpers.lejepa import data, sample
from helpers.lejepa.model import token_spans
from helpers.lejepa.parameters import choose_base_model
from helpers.train.sentence_encoder import load_sentence_encoder

base_model = choose_base_model(params.base_model, machine.kind)
backbone = load_sentence_encoder(
    base_model, max_seq_length=params.max_seq_length, seed=params.seed, texts=sample.texts()
)
spans, limit = token_spans(backbone)
collection = data.load(
    params.data_source,
    num_samples=params.num_samples,
    seed=params.seed,
    spans=spans,
    limit=min(limit, params.max_seq_length),
)
print(collection.passages[0].text[:400])

# %% [markdown]
# ## The method, in one file
#
# Two views of a text should have the same embedding. A model that gives all texts one embedding would do that, too. **SIGReg** prevents this: in many random
# directions, the embeddings of a batch must look like draws from an isotropic Gaussian. A third, contrastive term pulls a view closer to its own text than
# to the others.
#
# $$\mathcal{L} = (1 - w)\,\mathrm{invariance} + w\,\mathrm{SIGReg} + c\,\mathrm{contrastive}$$
#
# **Change a line below and run all cells again: your version is what trains**, in a folder of its own.

# %% tags=["method"]
# method: helpers/lejepa/loss.py

# %%
import torch

run.use_method()
from helpers.lejepa.loss import LeJEPALoss, SIGReg, views

run.note(data=collection.provenance)
counts = {
    "documents": len(collection.documents),
    "passages": len(collection.passages),
    "training pairs": len(collection.training),
    f"dev {collection.kind}": len(collection.dev),
    f"test {collection.kind}": len(collection.test),
}
tables.show([counts], collection.name)
print(f"divided {collection.split}")
sigreg = SIGReg(seed=params.seed)
print(f"SIGReg of a Gaussian batch {sigreg(torch.randn(1, 256, 64), 0):.2f} ({sigreg.floor:.2f} on average)")
print(f"SIGReg of a batch where all texts have one embedding {sigreg(torch.zeros(1, 256, 64), 0):.1f}")

# %% [markdown]
# ## What costs nothing
#
# The stock model embeds everything once. A search can use the **meaning** alone (cosines), **BM25** alone (it counts words), or both with weights that
# the dev questions choose. Two more rivals have no weights: both fused **by rank**, and, where answers have several past questions, a **linear classifier**
# on the frozen embeddings.

# %%
import numpy as np
from sklearn.linear_model import LogisticRegression

from helpers.lejepa.evaluation import CLASSIFIER, STOCK, Judge, choose, default_mix, searches, simple
from helpers.lejepa.standalone import unit
from helpers.train.sentence_encoder import encode

dev, test = Judge(collection, collection.dev), Judge(collection, collection.test)
judges = [judge for judge in (dev, test) if judge.asked]
texts = dev.texts
if machine.kind in ("cuda", "xla"):
    backbone = backbone.to(machine.device)
stock_NK = encode(backbone, texts, "document")
measured, rivals = {}, {}
for judge in judges:
    questions_QK = encode(backbone, judge.asked, "query")
    measured[judge] = {STOCK: judge.measure(questions_QK, stock_NK)}
    rivals[judge] = {}
    answers = [passage.document for passage in judge.passages]
    # Several past questions for an answer; beyond 2,000 answers it takes minutes.
    if 2 < len({*answers}) <= min(2000, len(answers) / 3):
        regression = LogisticRegression(C=10, max_iter=300).fit(unit(stock_NK), answers)
        scores_QD = regression.decision_function(unit(questions_QK))
        rivals[judge][CLASSIFIER] = judge.ndcg(scores_QD[:, np.searchsorted(regression.classes_, answers)])
default = default_mix(texts, spans)
if dev in measured:
    free = choose(measured[dev], default, collection.kind)
    values = simple(measured[dev][STOCK], rivals[dev]) | searches(measured[dev], free)
    rows = [{"search": name, "nDCG@10": float(value_Q.mean())} for name, value_Q in values.items()]
    tables.show(rows, f"{base_model}: nDCG@10 on {len(dev.asked)} dev {collection.kind}")

# %% [markdown]
# ## Plan, and training
#
# LeJEPA starts from the stock model and puts a linear head behind it, which begins as the principal axes of the embeddings: at the start both rank alike.
# No answer is twice in a batch, since it would be its own negative.

# %%
import dataclasses

from helpers.lejepa.model import GaussianEmbeddingGemma, principal_head
from helpers.lejepa.training import fit_lengths, make_plan, new_trainer, pairs

weight_KD = principal_head(stock_NK, params.output_dim)
model = GaussianEmbeddingGemma(backbone, weight_KD)
weights = {"sigreg_weight": params.sigreg_weight, "contrastive_weight": params.contrastive_weight}
loss = LeJEPALoss(model, **weights, seed=params.seed)
lengths = fit_lengths(model, collection.training, views, params.train_length, machine)
print("tokens that are read in training:", ", ".join(f"{name} {length}" for name, length in lengths.items()))
chosen = {"batch_size": params.batch_size, "learning_rate": params.learning_rate, "max_steps": params.max_steps}
plan = make_plan(loss, collection.training, spans, lengths, machine, **chosen)
machine = dataclasses.replace(machine, precision=plan.precision)
tables.show(plan.rows())

rows = pairs(collection.training, views, plan.max_steps, plan.batch_size, params.seed)
tables.show([{"column": name, "text": text[:300]} for name, text in rows[0].items()], "The views of one text")
trainer = new_trainer(model, loss, rows, params, plan, machine, run.path, lengths)
say_changed(params, globals())
run.note(examples_a_step=plan.batch_size)
trainer.train(resume_from_checkpoint=params.resume)
cost = trainer.results()
tables.show(trainer.meter.rows(cost["train"], cost.get("xla")))

# %% [markdown]
# ## Is it any good?
#
# The verdict says what training adds, where the stock and the trained model have the same help of BM25, and what the search that is kept adds to the
# strongest simple method. The test questions chose nothing. The intervals are over these questions, and of this one training.

# %%
import pandas

from helpers.lejepa.evaluation import TRAINED, verdicts

trained_NK = encode(trainer.model, texts, "document")
for judge in judges:
    measured[judge][TRAINED] = judge.measure(encode(trainer.model, judge.asked, "query"), trained_NK)
choice = choose(measured.get(dev, {}), default, collection.kind)
decided = []
if test in measured:
    values = simple(measured[test][STOCK], rivals[test]) | searches(measured[test], choice)
    means = pandas.Series({name: value_Q.mean() for name, value_Q in values.items()})
    title = f"nDCG@10 on {len(test.asked)} test {collection.kind}, divided {collection.split}"
    tables.show([{"search": name, "nDCG@10": float(mean)} for name, mean in means.items()], title)
    decided = verdicts(measured[test], rivals[test], choice)
    for line in trainer.unfinished():
        print(line)
    tables.show(decided, "Verdict, of one training")
    colors = np.where(means.index == f"{choice.model}, {choice.mixes[choice.model]}", "tab:blue", "lightsteelblue")
    title = f"Search by {len(test.asked)} test {collection.kind} (dark: the search that is saved)"
    axes = means.plot.barh(figsize=(8, 3.2), title=title, xlabel="nDCG@10", ylabel="", xlim=(0, 1), color=colors)
    axes.invert_yaxis()
else:
    print("These data have no questions, and no headings that only one document has: nothing can be measured.")
print(f"kept: {choice.model}, searched by {choice.mixes[choice.model]} ({choice.reason})")

# %% [markdown]
# ## Save
#
# `model/` is the model that LeJEPA trained. `search/` has all that the search needs: its model, a FAISS index, a BM25 index, the passages, the weights and
# `search.py`, which works without this package.

# %%
from sentence_transformers import SentenceTransformer

from helpers.lejepa import search
from helpers.lejepa.evaluation import MIXES

trainer.save_model(str(run.path / "model"))
reloaded = SentenceTransformer(str(run.path / "model"), device="cpu").to(backbone.device)
difference = abs(encode(reloaded, texts[:8], "document") - trained_NK[:8]).max() / abs(trained_NK[:8]).max()
print(f"the reloaded model differs by {difference:.1e} of the largest value")
if difference > 1e-2:
    raise RuntimeError(f"the model saved in {run.path / 'model'} differs from the one in memory")
kept_model = {STOCK: backbone, TRAINED: trainer.model}[choice.model]
passages = collection.searched(collection.past + collection.dev + collection.test if collection.past else [])
vectors_NK = encode(kept_model, [passage.text for passage in passages], "document")
mix = choice.mixes[choice.model]
search.save(run.path / "search", kept_model, passages, vectors_NK, MIXES[mix])
say_changed(params, globals())
results_file = run.results(
    machine,
    **trainer.results(),
    data={**collection.provenance, "kind": collection.kind, "split": collection.split, **counts},
    model={"base_model": base_model, "output_dim": model.get_embedding_dimension()},
    eval={
        name: {searched: float(value_Q.mean()) for searched, value_Q in table.items()}
        for name, table in measured.get(test, {}).items()
    },
    evidence={
        "kept": choice.model,
        "mix": mix,
        "reason": choice.reason,
        "verdicts": decided,
    },
    artifacts={"model": "model", "search": "search"},
)
print(results_file)

# %%
# @title Search {display-mode: "form"}
question = ""  # @param {type:"string"}
question = question or (collection.test[0].text if collection.test else collection.passages[0].text[:60])
results = search.load(run.path / "search")(question)
tables.show([{"score": score, "document": name, "passage": text[:300]} for score, name, text in results], question)

# %% [markdown]
# ## Next steps
#
# - **Take the search with you**: download `search/`, and run `python search.py`: it answers a question a line.
# - **New or changed documents**: set `output_dir` to a new folder, and run all cells again.
# - **Take the model with you**: `SentenceTransformer("<output_dir>/model")`; its dimensions are sorted, so `truncate_dim=128` keeps the most important.
# - **Collect past questions**, in the folder of your documents or by themselves: the search improves with them, whether or not training helps.
# - **Another method**: change `views` or the weights of the loss in the method's cell.
