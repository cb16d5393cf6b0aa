# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # Answers about your code, a search of it, and GraphMER-SE (GPU)
#
# Three things for one repository of Python:
#
# 1. **Who calls this, and what breaks if you change it**: from the sources, in seconds. pyrefly, a type checker, resolves the names.
# 2. **A search in words**: BM25, and a sentence encoder that is tuned on docstrings for two minutes.
# 3. **GraphMER-SE**, an encoder that reads code together with its knowledge graph, to be studied and changed.
#
# {picture: Mean reciprocal rank of the search before and after its tuning, beside BM25 alone}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one the CPU trains a smaller encoder. Press **Run all**.
#
# The search starts from MiniLM (Apache-2.0).
#
# If you are disconnected, press **Run all** again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so
# set `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # Answers about your code, a search of it, and GraphMER-SE (TPU)
#
# Three things for one repository of Python:
#
# 1. **Who calls this, and what breaks if you change it**: from the sources, in seconds. pyrefly, a type checker, resolves the names.
# 2. **A search in words**: BM25, and a sentence encoder that is tuned on docstrings for two minutes.
# 3. **GraphMER-SE**, an encoder that reads code together with its knowledge graph, to be studied and changed.
#
# {picture: Mean reciprocal rank of the search before and after its tuning, beside BM25 alone}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*), else the GPU or the CPU. Press **Run all**.
# XLA compiles the first steps, once for each length of the curriculum.
#
# The search starts from MiniLM (Apache-2.0).
#
# If you are disconnected, press **Run all** again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so
# set `keep_in` (in Colab: `drive`).

# %% [markdown]
# ## Your settings
#
# `data_source` is a folder of Python sources and notebooks, or `"sample"`: this Python's standard library. {own data} `query` is a name whose users you
# want to see, `question` a search in words. 0 = choose for me.

# %% tags=["parameters"]
# parameters: helpers.graphmer.parameters.GraphParameters

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers bm25s charset-normalizer scipy scikit-learn pyrefly protobuf wandb matplotlib

# %%
from helpers import parameters
from helpers.data.data_source import DataSource, locate
from helpers.graphmer.parameters import GraphParameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.notebook.settings import say_changed
from helpers.run.run_folder import RunFolder
from helpers.show import tables

secrets.provide("HF_TOKEN")
params = parameters.check(GraphParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
configuration = params.configuration(machine)
machine = runtime.detect(params.use_tpu, configuration.run.mixed_precision)
run = RunFolder.claim("graphmer_se", params)
place = locate(params.data_source)  # a run that goes on has its uploaded file
data_source = str(place.path or place.value)
options = {"report_to": params.report_to, "max_hours": params.max_hours}
print(machine, f"output: {run.path}", sep="\n")

# %% [markdown]
# ## Who calls it, what it calls, what breaks if you change it
#
# **resolved**: the type checker says that the line means this. **overridden**: it means a method that this one overrides. **one of**: the name has
# several definitions, in branches. **inferred**: nothing else has this long name. **open**: nothing tells what is meant; look at the line yourself.
# *Impact* is all that a change can reach. Without a `query` the cell shows the function that has most callers.

# %%
from collections import Counter

from helpers.graphmer.ask import Asked
from helpers.graphmer.graph.build import build_graph
from helpers.graphmer.graph.index import read_index

index = read_index(data_source, keep_in=run.path / "index")
asked, graph = Asked(index), build_graph(index)
source = DataSource(name=place.name, sha256=graph.digest())
run.note(data=source.provenance)
calls = Counter(
    triple.tail for triple in graph.triples if triple.relation == "calls" and triple.tail in index.definitions
)
name = calls.most_common(1)[0][0] if calls else ""
if params.query:
    try:
        name = asked.find(params.query)[0].id
    except ValueError as error:
        print(str(error).replace("name=", "query=", 1), f"Shown instead: {name or 'nothing'}", sep="\n")
if not name:
    print("no definition of this repository is called by another one of it")
for relation in ("called_by", "calls", "impact") if name else ():
    report = asked.report(name, relation)
    summary = ", ".join(f"{number:,} {status}" for status, number in report["count"].items())
    tables.show(report["answers"][:8], f"{name} {relation}: {summary or 'nothing'}")
if index.failed:
    tables.show(index.failed[:8], f"{len(index.failed):,} files could not be read, or not as a whole")

# %% [markdown]
# ## A search in words, tuned
#
# A pair is the first sentence of a docstring and the definition without it: of your repository, the standard library and installed packages. All pairs
# of a batch are of one package, so that the loss has to tell similar functions apart. Two packages choose (dev), four are for the test.

# %%
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from helpers.graphmer import search_training
from helpers.graphmer.graph.sources import folder_of
from helpers.graphmer.pairs import hold_out, in_batches, installed_packages, pairs
from helpers.graphmer.search import CODE_TOKENS
from helpers.train.sentence_encoder import load_sentence_encoder

everything = pairs([folder_of(data_source), *installed_packages()], seed=params.seed)
parts = hold_out(everything, dev=2, test=4, seed=params.seed)
packages = {split: sorted(set(getattr(parts, split)["package"])) for split in parts._fields}
counts = {"pairs": len(parts.training), "packages": len(packages["training"])}
tables.show([counts | {split: ", ".join(packages[split]) for split in ("dev", "test")}])
print(parts.training[0]["question"], parts.training[0]["code"][:300], sep="\n\n")

encoder = load_sentence_encoder(
    params.base_model, texts=parts.training["code"], seed=params.seed, max_seq_length=CODE_TOKENS
)
search_training.freeze_lower_half(encoder)
search_plan = search_training.search_plan(encoder, params.search_steps, machine)
if machine.kind in ("cuda", "xla"):
    encoder = encoder.to(machine.device)
start = {split: search_training.rank_questions(encoder, getattr(parts, split)) for split in ("dev", "test")}
batches = in_batches(parts.training, batch_size=search_plan.batch_size, steps=search_plan.max_steps, seed=params.seed)
dev = in_batches(parts.dev, batch_size=search_plan.batch_size, steps=4, seed=params.seed)
loss = MultipleNegativesRankingLoss(encoder)
search_trainer = search_training.new_search_trainer(
    encoder, batches, dev, loss, search_plan, machine, run.path / "search", seed=params.seed, **options
)
say_changed(params, globals())
_ = search_trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown]
# ## Is the search any good?
#
# The first sentence of a docstring has to find its definition, in the four test packages. *Fused* means combined with BM25; the encoder before its
# tuning gets the same help. The search that does best on dev is kept.

# %%
import matplotlib.pyplot as plt

tuned = {split: search_training.rank_questions(encoder, getattr(parts, split)) for split in ("dev", "test")}
ranks = {
    split: {
        "BM25": start[split]["BM25"],
        "start, fused": start[split]["fused"],
        "tuned, fused": tuned[split]["fused"],
    }
    for split in ("dev", "test")
}
chosen = max(ranks["dev"], key=lambda row: ranks["dev"][row].mean())
encoders_alone = {"start": start["test"]["encoder"], "tuned": tuned["test"]["encoder"]}
test_questions = parts.test["question"]
search_table = search_training.verdict(ranks["test"] | encoders_alone, test_questions, chosen)
tables.show(search_table, f"{len(test_questions)} questions of {', '.join(packages['test'])}; dev chooses: {chosen}")
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
for row in search_table:
    axes.barh(row["row"], row["MRR"], color="tab:blue" if row["row"] == chosen else "lightsteelblue")
axes.set(
    xlabel="mean reciprocal rank (1: always first)",
    xlim=(0, 1),
    title="A docstring's first sentence finds its definition (dark: the search that is saved)",
)
plt.show()
of_tuning = search_training.verdict(ranks["test"], test_questions, "tuned, fused")
search_verdict = [
    {"what": "tuning, over the same start with the same BM25", "MRR": of_tuning[1]["tuned, fused above it (95 %)"]},
    {
        "what": f"the search ({chosen}), over BM25",
        "MRR": search_table[0][f"{chosen} above it (95 %)"] or "it is BM25",
    },
]
for line in search_trainer.unfinished():
    print(line)
tables.show(search_verdict, "verdict, of one training: differences of the mean reciprocal rank")

# %% [markdown]
# ## Save it, and ask in words
#
# The folder loads with `SentenceTransformer(folder)`. Where BM25 alone does best on dev, no model is saved, and the search is BM25.

# %%
import os

from helpers.graphmer.search import search

search_model = run.path / "search_model"
if chosen == "BM25":
    search_model = None
elif chosen == "start, fused":
    load_sentence_encoder(params.base_model, texts=parts.training["code"], seed=params.seed).save_pretrained(
        str(search_model)
    )
else:
    search_trainer.save_model(str(search_model))
evaluations = {"search": search_table, "search_verdict": search_verdict, "search_is": chosen}
data = source.provenance | {"search_pairs": len(parts.training), "search_packages": packages}
artifacts = {"search_model": search_model and search_model.name}
results_file = run.results(
    machine, **search_trainer.results(), data=data, eval={"after": evaluations}, artifacts=artifacts
)
print(results_file)

hits = search(index, params.question, model=search_model)
if hits:
    tables.show([hit._asdict() for hit in hits], params.question)
else:
    print(f"question={params.question!r}: no definition has a word of it; ask with other words")

# %% [markdown]
# ## The encoder: its method, in one file
#
# The answers and the search are done; they do without this encoder. After minutes of training it is no tool: words alone still rank the right end of
# a held-out triple higher.
#
# Tokens of code in a row are the roots. A triple of the graph, such as *`dumps` calls `JSONEncoder.encode`*, hangs as a leaf where its head is named.
# Relation and head flow into the leaf (H-GAT), attention falls with the distance in this chain, and the model learns to fill in what is masked. **Change
# a line below and run all cells again: your version is what trains**, in a folder of its own.

# %% tags=["method"]
# method: helpers/graphmer/encoder.py

# %% [markdown]
# ## Its data and its plan
#
# Whole packages are held out; where there are too few, modules or definitions are. The validation triples choose the checkpoint. Below is one
# sequence: the beginning of its code, and the triples that hang there.

# %%
run.use_method()
from helpers.graphmer import evaluation
from helpers.graphmer.chains import IGNORED
from helpers.graphmer.configuration import to_yaml
from helpers.graphmer.training import load_corpus, make_plan, new_model

(run.path / "configuration.yaml").write_text(to_yaml(configuration), encoding="utf-8")
corpus = load_corpus(graph, configuration)
triples = {split: len(getattr(corpus.splits, split)) for split in ("train", "validation", "test")}
tables.show([triples | {"sequences": len(corpus.train)}], f"{place.source}: {corpus.splits.reason}")
example, names = corpus.train[0], corpus.train.encoded.relations.names
print(corpus.tokenizer.decode(example["root_ids"][:80]), "\n")
leaves = []
for leaf in range(int((example["leaf_segments"] > 0).sum())):
    first, count = example["head_start"][leaf], example["head_length"][leaf]
    labels = example["mnm_labels"][leaf]
    hidden = labels[labels != IGNORED]
    tail = hidden if len(hidden) else example["leaf_ids"][leaf]
    head = corpus.tokenizer.decode(example["root_ids"][first : first + count])
    text = corpus.tokenizer.decode([token for token in tail if token > 2])
    leaves.append(
        {"head": head, "relation": names[example["relation_ids"][leaf]], "tail": text, "masked": len(hidden) > 0}
    )
tables.show(leaves[:8])

model = new_model(configuration, corpus)
plan = make_plan(configuration, model, corpus, machine)
tables.show(plan.rows(), f"{model.num_parameters():,} weights; terms of the loss: {', '.join(model.config.weights())}")
questions = evaluation.draw_triples(corpus, configuration.evaluation.max_triples)
words = evaluation.rank_tails(evaluation.score_words(corpus), corpus, questions)
link_ranks = {"words": words}

# %% [markdown]
# ## Train the encoder
#
# For each held-out triple the right tail has to be found among all entities that the relation admits: by **words** (BM25 of the tails' names, with the
# head's source as the question), by the **untrained** encoder and by the **trained** one.

# %%
from transformers import AutoModel

from helpers.graphmer.training import new_trainer

trainer = new_trainer(model, corpus, configuration, plan, machine, run.path, **options)
say_changed(params, globals())
run.note(examples_a_step=plan.batch_size)
trainer.train(resume_from_checkpoint=params.resume)
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
untrained = new_model(configuration, corpus).to(machine.device)
for row, of_row in {"untrained": untrained, "trained": trainer.model}.items():
    link_ranks[row] = evaluation.rank_tails(evaluation.score_encoder(of_row, corpus), corpus, questions)
links = search_training.verdict(link_ranks, [triple.head for triple in questions], "trained")
tables.show(links, f"the right tail of {len(questions)} held-out triples")
trainer.save_model(str(run.path / "model"))
corpus.tokenizer.save_pretrained(run.path / "model")
loaded = AutoModel.from_pretrained(run.path / "model")  # by the class above: no code of the folder is run
print(f"{loaded.num_parameters():,} weights of the encoder were read again")

by_row = {row["row"]: row["trained above it (95 %)"] for row in links}
link_verdict = [
    {"what": "the encoder's training, over its untrained start", "MRR": by_row["untrained"]},
    {"what": "the encoder's training, over words", "MRR": by_row["words"]},
]
for line in search_trainer.unfinished() + trainer.unfinished():
    print(line)
tables.show(search_verdict + link_verdict, "verdict, of one training: differences of the mean reciprocal rank")
if search_model:  # an edited method has a folder of its own
    artifacts = {"search_model": os.path.relpath(search_model, run.path)}
say_changed(params, globals())
results_file = run.results(
    machine,
    **trainer.results(),
    data=data | {"train_examples": len(corpus.train), "eval_examples": len(corpus.validation), "triples": triples},
    model={"weights": model.num_parameters(), "configuration": configuration.model_dump()},
    eval={"after": evaluations | {"links": links}},
    artifacts=artifacts | {"model": "model"},
)
print(results_file)

# %% [markdown]
# ## Next steps
#
# - **From the shell**, in the folder of the repository: `python -m helpers.graphmer ask function_name` (`--json` for a coding agent), and
#   `python -m helpers.graphmer search "reads a configuration" --model outputs/graphmer_se/search_model`.
# - **Another encoder**: change its cell, or `changes="model.num_layers=6"`; `config="published"` trains all parts of the published configuration;
#   `configuration.yaml` in the run's folder has every key.
# - **Out of memory**: the run halves its micro-batch by itself; `checkpointing.activation_checkpointing=true` in `changes` saves most.
