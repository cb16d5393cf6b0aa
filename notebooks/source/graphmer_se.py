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
# Three things for one repository in Python or Java:
#
# 1. **Who calls this, and what does a change reach**: proved from the sources, in seconds, without a model.
# 2. **GraphMER-SE**, an encoder that reads code together with its knowledge graph and learns to fill in what is masked of both. It is
#    here to be studied and changed: its whole method is one cell. The answers and the search do not use it, because the sources prove
#    what it would guess, and words find what it would search for.
# 3. **A search in words** over functions, methods and classes: a sentence encoder that is tuned on docstrings for two minutes, fused
#    with BM25. It is saved as a SentenceTransformer.
#
# {picture: Mean reciprocal rank of the search before and after its tuning, beside BM25 alone}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU, with a small encoder.
# **Run all** and wait. The TPU twin is `graphmer_se_tpu.ipynb`.
#
# {planned}
#
# MiniLM, which the search starts from, is under Apache-2.0.
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # Answers about your code, a search of it, and GraphMER-SE (TPU)
#
# Three things for one repository in Python or Java:
#
# 1. **Who calls this, and what does a change reach**: proved from the sources, in seconds, without a model.
# 2. **GraphMER-SE**, an encoder that reads code together with its knowledge graph and learns to fill in what is masked of both. It is
#    here to be studied and changed: its whole method is one cell. The answers and the search do not use it, because the sources prove
#    what it would guess, and words find what it would search for.
# 3. **A search in words** over functions, methods and classes: a sentence encoder that is tuned on docstrings for two minutes, fused
#    with BM25. It is saved as a SentenceTransformer.
#
# {picture: Mean reciprocal rank of the search before and after its tuning, beside BM25 alone}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips). Without one it goes
# on with the GPU or the CPU. The first steps take long: XLA compiles them, once for each length of the curriculum. The GPU twin is
# `graphmer_se.ipynb`.
#
# {planned}
#
# MiniLM, which the search starts from, is under Apache-2.0.
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers bm25s wandb matplotlib

# %% [markdown]
# ## Parameters
#
# `data_source` is a folder of Python and Java sources (for Java also `pip install tree-sitter tree-sitter-java`), or `"sample"`: this
# Python's standard library.
# `query` is a name whose callers are shown, `question` is what the search is asked in words. `config` is a YAML file or a profile of
# the encoder (`published` is that of the GraphMER-SE project); `changes` sets single keys of it,
# `"model.num_layers=6; optimizer.lr=1e-4"`. A zero takes the recipe's value. Every parameter and every key of the configuration is
# checked before anything slow starts. {own data}

# %% tags=["parameters"]
# parameters: helpers.graphmer.parameters.GraphParameters

# %%
from helpers import parameters
from helpers.data.data_source import located
from helpers.graphmer.configuration import to_yaml
from helpers.graphmer.parameters import GraphParameters, in_precision
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.run.run_folder import RunFolder
from helpers.show import tables

secrets.provide("HF_TOKEN")
params = parameters.check(GraphParameters, globals())
data_source = located(params.data_source)
machine = runtime.detect(params.use_tpu, params.precision)
configuration = params.configuration(machine)
machine = in_precision(machine, configuration)
run = RunFolder.claim("graphmer_se", params)
print(machine, f"output: {run.path}", "", to_yaml(configuration), sep="\n")

# %% [markdown]
# ## Who calls it, what it calls, what a change reaches
#
# Needs no model and no training, and takes seconds on a large repository. **known**: the sources prove it, through imports,
# scopes and inheritance. **overridden**: they prove a call of a method that this one overrides. **open**: the source names it
# there, and only running would tell what is meant; look at these lines yourself. Without a `query` the function with most
# callers is asked about.

# %%
from collections import Counter

from helpers.graphmer.ask import Asked

asked = Asked(data_source)
called = Counter(each.tail for each in asked.graph.triples if each.relation == "calls")
most_called = next(name for name, _ in called.most_common() if asked.graph.entities[name].status == "defined")
for relation in ("called_by", "calls", "impact"):
    answers = asked.answers(params.query or most_called, relation)
    count = ", ".join(f"{number:,} {status}" for status, number in Counter(each.status for each in answers).items())
    tables.show(
        [each._asdict() for each in answers[:8]], f"{params.query or most_called} {relation}: {count or 'nothing'}"
    )

# %% [markdown]
# ## The encoder: its method, in one file
#
# Tokens of code in a row are the roots. A triple of the graph, such as *`dumps` calls `JSONEncoder.encode`*, hangs as a leaf where its
# head is named. Relation and head flow into the leaf (H-GAT), attention falls with the distance in this chain, and the model learns to
# fill in masked identifiers and masked leaves. **Change a line below and run all cells again: your version is what trains**, in a
# folder of its own.

# %% tags=["method"]
# method: helpers/graphmer/encoder.py

# %% [markdown]
# ## Its data: leafy chains
#
# Held out are whole packages, or modules or definitions where there are too few; no pair of entities is on both sides. What the
# resolver leaves open is never trained on. Below is one sequence: the beginning of its code, and the triples that hang there.

# %%
run.use_method()
from helpers.graphmer.chains import IGNORED
from helpers.graphmer.training import load_corpus

corpus = load_corpus(asked.graph, data_source, configuration)
run.same_data(corpus.source)
parts = {name: len(getattr(corpus.splits, name)) for name in ("train", "validation", "test")}
tables.show([parts | {"sequences": len(corpus.train)}], f"{corpus.source}: {corpus.splits.said}")
example, names = corpus.train[0], corpus.train.relations.names
print(corpus.tokenizer.decode(example["root_ids"][:80]), "\n")
leaves = []
for leaf in range(int((example["leaf_segments"] > 0).sum())):
    first, count = example["head_start"][leaf], example["head_length"][leaf]
    hidden = example["mnm_labels"][leaf][example["mnm_labels"][leaf] != IGNORED]
    tail = hidden if len(hidden) else example["leaf_ids"][leaf]
    head = corpus.tokenizer.decode(example["root_ids"][first : first + count])
    shown = corpus.tokenizer.decode([token for token in tail if token > 2])
    leaves.append(
        {"head": head, "relation": names[example["relation_ids"][leaf]], "tail": shown, "masked": len(hidden) > 0}
    )
tables.show(leaves[:8])

# %% [markdown]
# ## Its plan, and what costs nothing
#
# The plan says what will run and why, and what it is expected to take. For held-out triples the right tail is looked for among all
# entities that the relation admits. **Words**: BM25 of the tails' names with the head's source as the question. (The resolver, which
# made these triples from the sources, answers all of them: its reciprocal rank is 1.)

# %%
from helpers.graphmer import evaluation
from helpers.graphmer.training import make_plan, new_model
from helpers.graphmer.workload import workload
from helpers.plan import forecast as forecasts

model = new_model(configuration, corpus)
plan = make_plan(configuration, model, corpus, machine)
forecast = forecasts.here(workload(configuration, model), plan, machine)
tables.show(plan.rows(), f"{model.num_parameters():,} weights; terms of the loss: {', '.join(model.config.weights())}")
tables.show(forecast.rows())
triples = evaluation.asked_triples(corpus, configuration.evaluation.max_triples)
words = evaluation.reciprocal_ranks(evaluation.Words(corpus), corpus, triples)
ranks = {"resolver": [1.0] * len(triples), "words": words}

# %% [markdown]
# ## Train the encoder
#
# The trainer is that of transformers, and every term of the loss is in the logs. Below them is what the training added on the
# held-out triples. **Untrained** is the encoder before its first step. The model is saved, and `AutoModel` reads its encoder again.

# %%
from transformers import AutoModel

from helpers.graphmer.training import new_trainer

options = {"report_to": params.report_to, "max_hours": params.max_hours}
trainer = new_trainer(model, corpus, configuration, plan, machine, run.path, **options)
trainer.train(resume_from_checkpoint=params.resume)
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
untrained = new_model(configuration, corpus).to("cuda" if machine.kind == "cuda" else "cpu")
for name, encoder in {"untrained": untrained, "trained": trainer.model}.items():
    ranks[name] = evaluation.reciprocal_ranks(evaluation.Encoder(encoder, corpus), corpus, triples)
links = evaluation.verdict(ranks, [triple.head for triple in triples], "trained")
tables.show(links, f"the right tail of {len(triples)} held-out triples")
trainer.save_model(str(run.path / "model"))
corpus.tokenizer.save_pretrained(run.path / "model")
loaded = AutoModel.from_pretrained(run.path / "model")  # by the class above: no code of the folder is run
print(f"{loaded.num_parameters():,} weights of the encoder were read again")

# %% [markdown]
# ## A search in words, tuned
#
# A pair is the first sentence of a docstring and the definition without that docstring: of your repository, of the standard library
# and of installed packages. All pairs of a batch are of one package, so that the other answers of the batch, which the loss takes for
# wrong ones, are functions that a search has to tell apart. Four packages are held out. The trainer is that of sentence-transformers
# with its `MultipleNegativesRankingLoss`; only the upper half of the layers learns.

# %%
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from helpers.graphmer import search_training
from helpers.graphmer.graph.extraction import folder_of
from helpers.graphmer.pairs import held_out_packages, in_batches, installed_packages, pairs
from helpers.graphmer.search import CODE_TOKENS
from helpers.plan import settings as planner
from helpers.train.sentence_encoder import load_sentence_encoder

everything = pairs([folder_of(data_source), *installed_packages()], total=6_000, seed=params.seed)
rows, held_out = held_out_packages(everything, 4, seed=params.seed)
told = {"pairs": len(rows), "packages": len(set(rows["package"]))}
tables.show([told | {"held out": ", ".join(sorted(set(held_out["package"])))}])
print(rows[0]["question"], rows[0]["code"][:300], sep="\n\n")

encoder = load_sentence_encoder(params.base_model, texts=rows["code"], seed=params.seed, max_seq_length=CODE_TOKENS)
search_rows = evaluation.search_rows(encoder, held_out)  # before any training
weights = search_training.freeze_lower_half(encoder)
recipe = search_training.search_recipe(params.search_steps)
search_plan = planner.plan(recipe, search_training.search_workload(encoder, "graphmer_se"), machine)
batches = in_batches(rows, batch_size=search_plan.batch_size, steps=search_plan.max_steps, seed=params.seed)
dev = in_batches(held_out, batch_size=search_plan.batch_size, steps=4, seed=params.seed)
search_trainer = search_training.new_search_trainer(
    encoder,
    batches,
    dev,
    MultipleNegativesRankingLoss(encoder),
    search_plan,
    machine,
    run.path / "search",
    seed=params.seed,
    **options,
)
_ = search_trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown]
# ## Verdict
#
# The first sentence of a docstring has to find its definition in packages that the search was not tuned on. *Fused* is with BM25, as
# the search uses it; the encoder before tuning gets the same help.

# %%
import matplotlib.pyplot as plt

tuned = evaluation.search_rows(encoder, held_out)
search_rows |= {f"tuned{name.removeprefix('start')}": each for name, each in tuned.items() if name.startswith("start")}
found = evaluation.verdict(search_rows, held_out["question"], "tuned, fused")
tables.show(found, f"{len(held_out)} questions of {len(set(held_out['package']))} packages")
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
axes.barh([row["row"] for row in found], [row["MRR"] for row in found])
axes.set(
    xlabel="mean reciprocal rank (1: always first)",
    xlim=(0, 1),
    title="A docstring's first sentence finds its definition",
)
plt.show()
box = {row["row"]: row for row in (*links, *found)}
tables.show(
    [
        {
            "what": "the encoder's training, over its untrained start",
            "MRR": box["untrained"]["trained above it (95 %)"],
        },
        {"what": "the encoder's training, over words", "MRR": box["words"]["trained above it (95 %)"]},
        {
            "what": "tuning, over the same start with the same BM25",
            "MRR": box["start, fused"]["tuned, fused above it (95 %)"],
        },
        {"what": "the whole search, over BM25", "MRR": box["BM25"]["tuned, fused above it (95 %)"]},
    ],
    "verdict: differences of the mean reciprocal rank",
)

# %% [markdown]
# ## Save the search, read it again and ask
#
# The folder loads with `SentenceTransformer(folder)` wherever sentence-transformers is installed.

# %%
from helpers.graphmer.search import search

folder = run.path / "search_model"
search_trainer.save_model(str(folder))
tables.show([each._asdict() for each in search(data_source, params.question, model=folder)], params.question)
results_file = run.results(
    machine,
    **measured,
    forecast=forecast.results(),
    data={
        **corpus.provenance,
        "train_examples": len(corpus.train),
        "eval_examples": len(corpus.validation),
        "triples": parts,
    },
    model={"weights": model.num_parameters(), "configuration": configuration.model_dump()},
    eval={"after": {"links": links, "search": found}},
    artifacts={"model": "model", "search_model": "search_model"},
)
print(results_file)

# %% [markdown]
# ## Next steps
#
# - **Your own code**: `data_source="my/repository"`. Tests are read, too; installed packages are not.
# - **From the shell**, without a notebook: `python -m helpers.graphmer ask my/repository function_name called_by` and
#   `python -m helpers.graphmer search my/repository "reads a configuration" --model outputs/graphmer_se/search_model`.
# - **Another encoder**: change its cell, or `changes="model.num_layers=6"`; `config="published"` trains every part of the published
#   configuration. The first cell after the parameters prints every key.
# - **Many runs**: `python -m helpers.batch notebooks/graphmer_se.ipynb --output-dir runs config=rtx3050 max_steps=10000`.
# - **Out of memory**: lower `training_data.micro_batch_size` and raise `run.gradient_accumulation_steps` by as much, then
#   `checkpointing.activation_checkpointing=true`.
