# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # GraphMER-SE, an encoder over code and its knowledge graph (GPU)
#
# Reads source code into a **knowledge graph** (who calls, contains, inherits from, imports what), hangs its triples as
# leaves on the code's tokens, and trains an encoder to fill in what is masked of both. At the end you have link prediction
# on packages that training never saw, beside counting and a lexical baseline on the same questions; and a model in
# safetensors that answers questions about any repository.
#
# **This is a study of a method.** Where the truth came from outside of this graph (calls that the resolver leaves open, code
# search) the encoder adds nothing to names, words and counts: `docs/graphmer.md` has the tables.
#
# {picture: What the graph says of one package, and dashed the first answers of the model that it does not have}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU, with a small model.
# **Run all** and wait. The TPU twin is `graphmer_se_tpu.ipynb`.
#
# {planned}
#
# Disconnected? Run all again: with the same `output_dir` it continues from the last checkpoint and ends with the same weights.

# %% [markdown] tags=["tpu"]
# # GraphMER-SE, an encoder over code and its knowledge graph (TPU)
#
# Reads source code into a **knowledge graph** (who calls, contains, inherits from, imports what), hangs its triples as
# leaves on the code's tokens, and trains an encoder to fill in what is masked of both. At the end you have link prediction
# on packages that training never saw, beside counting and a lexical baseline on the same questions; and a model in
# safetensors that answers questions about any repository.
#
# **This is a study of a method.** Where the truth came from outside of this graph (calls that the resolver leaves open, code
# search) the encoder adds nothing to names, words and counts: `docs/graphmer.md` has the tables.
#
# {picture: What the graph says of one package, and dashed the first answers of the model that it does not have}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips).
# Without one it goes on with the GPU or the CPU. The first steps take long: XLA compiles them, once for each
# length of the curriculum. The GPU twin is `graphmer_se.ipynb`.
#
# {planned}
#
# Disconnected? Run all again: with the same `output_dir` it continues from the last checkpoint and ends with the same weights.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock sentence-transformers wandb matplotlib

# %% [markdown]
# ## Parameters
#
# `data_source` is a folder of Python and Java sources (for Java also `pip install tree-sitter tree-sitter-java`), a folder
# with `triples.jsonl` and `entities.jsonl` of your own, or `"sample"`: this Python's standard library.
# `config` is a YAML file or a profile (`cpu`, `t4`, `rtx3050`, `a100`, `tpu_v5e_8`); `changes`
# sets single keys of it, `"model.num_layers=6; optimizer.lr=1e-4"`. A zero takes the configuration's value. {own data}

# %% tags=["parameters"]
# parameters: helpers.graphmer.parameters.GraphParameters

# %% [markdown]
# ## Check the parameters and the machine
#
# Every parameter and every key of the configuration is checked before anything slow starts.

# %%
from helpers import parameters
from helpers.graphmer.configuration import to_yaml
from helpers.graphmer.parameters import GraphParameters, in_precision
from helpers.machine import runtime
from helpers.run.run_folder import RunFolder
from helpers.show import tables

params = parameters.check(GraphParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
configuration = params.configuration(machine)
machine = in_precision(machine, configuration)
print(machine, "\n")
print(to_yaml(configuration))

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

asked = Asked.read(params.data_source)
called = Counter(each.tail for each in asked.graph.triples if each.relation == "calls")
most_called = next(name for name, _ in called.most_common() if asked.graph.entities[name].status == "defined")
for relation in ("called_by", "calls", "impact"):
    answers = asked.answers(params.query or most_called, relation)
    count = ", ".join(f"{number:,} {status}" for status, number in Counter(each.status for each in answers).items())
    tables.show(
        [each._asdict() for each in answers[:8]], f"{params.query or most_called} {relation}: {count or 'nothing'}"
    )

# %% [markdown]
# ## The knowledge graph
#
# Names are resolved through imports and scopes, not guessed; what nothing resolves is marked and never trained on. The
# ontology says which types a relation connects and what it forbids; violations are counted. Held out are whole packages, or
# modules or definitions where there are too few, and no pair of entities is on both sides, in whichever order and relation.

# %%
from helpers.graphmer import experiment

corpus = experiment.load_corpus(params.data_source, configuration)
run = RunFolder.claim("graphmer_se", params)
folder = run.path
run.same_data(corpus.source)
print(f"output: {folder.resolve()}\n{corpus.splits.said}")
graph, splits = corpus.graph, corpus.splits
tables.show([Counter(each.relation for each in graph.triples)], f"{len(graph.triples):,} triples by relation")
parts = {name: len(getattr(splits, name)) for name in ("train", "validation", "test")}
tables.show([parts], f"Triples of {corpus.source}")
tables.show(graph.manifest["failed"][:5], f"files that could not be read: {len(graph.manifest['failed'])}")

# %%
from helpers.graphmer.pictures import plot_neighbourhood

query = params.query or splits.test[0].head
figure = plot_neighbourhood(graph, query, folder / "figures" / "neighbourhood.png")

# %% [markdown]
# ## A leafy chain
#
# What the encoder reads: roots are the code's tokens, a leaf is the tail of a triple and hangs at the first token of its
# head's name. Masked are whole identifiers among the roots and whole leaves.

# %%
from helpers.graphmer.pictures import leaf_texts_of, plot_chain

used = [f"{share:.0%}" for share in corpus.train.fill()]
sizes = {"sequences": len(corpus.train), "roots": corpus.train.roots, "leaves": corpus.train.leaves}
tables.show([sizes | {"roots in use": used[0], "leaves in use": used[1]}])
print(corpus.documents.text(query)[:600], "\n")
tables.show([leaf._asdict() for leaf in leaf_texts_of(corpus.train[0], corpus.tokenizer, corpus.relations)])

# %%
figure = plot_chain(corpus.train[0], corpus.tokenizer, corpus.relations, folder / "figures" / "chain.png")

# %% [markdown]
# ## Attention decay in five lines
#
# Two tokens see each other the less, the farther they are apart in the chain: each logit is multiplied by
# `base ** GELU(sqrt(distance + 1) - p)`, where every head learns its own p. Of six roots with a leaf of three
# tokens at the third: distances by shortest paths, and the factors; then the form that the model uses, which needs no search.

# %%
import networkx
import torch

from helpers.graphmer.modeling_graphmer.graph_attention import Decay, distances

chain = networkx.path_graph(6)
chain.add_edges_from([(2, 6), (2, 7), (2, 8), (6, 7), (7, 8)])
paths = torch.tensor(networkx.floyd_warshall_numpy(chain, nodelist=range(9)))
slow = 0.6 ** torch.nn.functional.gelu(torch.sqrt(paths + 1) - 1.0)
fast = Decay(heads=1, base=0.6)(distances(6, torch.tensor([[2]]), 3))[0, 0].detach()
print(f"factors of the third root: {[round(each, 2) for each in slow[2].tolist()]}")
print(f"largest difference of the two forms: {float((slow - fast).abs().max()):.0e}")
if float((slow - fast).abs().max()) > 1e-6:
    raise RuntimeError("the two forms of attention decay differ")

# %% [markdown]
# ## Model and plan
#
# What will run and why, and what it is expected to take. Memory is counted: the training step
# runs once on tensors without numbers. Time rests on what others published, on a CPU it is not known.

# %%
from helpers.graphmer.workload import workload
from helpers.plan import forecast as forecasts

model = experiment.new_model(configuration, corpus)
step = workload(configuration, model)
plan = experiment.make_plan(configuration, model, corpus, machine)
tables.show(plan.rows(), f"{step.name}, {model.num_parameters():,} weights")

# %%
forecast = forecasts.here(step, plan, machine)
tables.show(forecast.rows())

# %%
from helpers.graphmer import evaluation

before = evaluation.masked(model, corpus, configuration)

# %% [markdown]
# ## Train
#
# Every term of the loss is in the logs: masked tokens (`mlm`), masked leaves (`mnm`), the right tail among wrong ones
# (`contrastive`), and what the ontology forbids.

# %%
from helpers.graphmer.training import new_trainer

trainer = new_trainer(
    model,
    corpus.train,
    corpus.validation,
    configuration,
    plan,
    machine,
    folder,
    report_to=params.report_to,
    patience=params.patience,
    max_hours=params.max_hours,
)
output = trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `mfu` is the share of the named datasheet peak that was used.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. `compiles_after_warmup` and `host_syncs_per_step` must be 0:
# else shapes change, or values leave the chip.

# %%
measured = trainer.results()
tables.show(trainer.meter.rows(measured["train"], measured.get("xla")))
tables.show(forecast.beside(measured["train"]))

# %% [markdown]
# ## Link prediction on unseen packages
#
# For each held-out triple its tail is asked for, and its head, among all entities that the relation admits; other right
# answers are left out (filtered). `contains` and `has_parameter` can be read off qualified names, so the last column is
# without them. The encoder scores a pair from both ends, with the given one and with each candidate as the query, weighed
# on validation. The **lexical baseline** is a strong one: likeness of names, words of the source and counts, weighed there
# as well. Both together are the scorer that is asked below and saved. Calibration error: how far the probability of a first
# answer is from how often it is right (0 is best).

# %%
from helpers.graphmer.links.predictor import LinkPredictor

predictor = LinkPredictor(trainer.model, corpus.validation)
rows = {"GraphMER-SE": evaluation.links(evaluation.encoder_scorer(predictor, corpus), corpus, configuration)}
together = evaluation.with_lexical_baseline(predictor, corpus, configuration)
rows["GraphMER-SE with the lexical baseline"] = evaluation.links(together, corpus, configuration)
if params.compare_baselines:
    rows |= evaluation.baselines(corpus, configuration)
if params.ablations:
    rows |= evaluation.variants(evaluation.ABLATIONS, configuration, corpus, machine, folder / "ablations")
rows |= evaluation.further_seeds(params.further_seeds, configuration, corpus, machine, folder / "seeds")
tables.show(evaluation.table(rows))

# %%
tables.show(evaluation.by_relation(rows))

# %% [markdown]
# ## Masked tokens
#
# Before and after training: the share of masked tokens whose first answer is right.

# %%
after = evaluation.masked(trainer.model, corpus, configuration)
tables.show(evaluation.masked_table(before, after))

# %% [markdown]
# ## Ask it
#
# The three likeliest tails of each relation, by encoder and lexical baseline together as in the table; * marks what the
# graph says. Dashed are first answers that it does not have.

# %%
answers = evaluation.answers(together, corpus, query)
tables.show(answers, query)
added = [(row["relation"], row["1"]) for row in answers if "1" in row and row["1"][-1] != "*"]
figure = plot_neighbourhood(graph, query, folder / "figures" / "answers.png", added=added)

# %% [markdown]
# ## Save and reload
#
# With the model are saved its code, tokenizer and ontology. The reloaded model must give the states of the one in memory.
# Where this suite is not, `AutoModel.from_pretrained(folder, trust_remote_code=True)` loads the encoder.

# %%
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.machine.engine import cpu_copy

trainer.save_model(str(folder / "model"))
corpus.tokenizer.save_pretrained(folder / "model")
(folder / "model" / "ontology.toml").write_text(corpus.ontology.text, encoding="utf-8")
saved = cpu_copy(GraphMERForPreTraining.from_pretrained(folder / "model")).eval()
difference = evaluation.same_states(trainer.model, saved, corpus)
print(f"states of the reloaded model differ by at most {difference:.1e}")
if difference > 1e-6:
    raise RuntimeError(f"the model saved in {folder / 'model'} differs from the trained one")

# %%
results_file = run.results(
    machine,
    **measured,
    forecast=forecast.results(),
    data={
        **corpus.provenance,
        "train_examples": len(corpus.train),
        "eval_examples": len(corpus.validation),
        "entities": len(graph.entities),
        "triples": parts,
    },
    model={"weights": model.num_parameters(), "configuration": configuration.model_dump()},
    eval={"before": {"masked": before}, "after": {"links": rows["GraphMER-SE"], "masked": after}, "baselines": rows},
    artifacts={"model": "model", "figures": "figures"},
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Your own code**: `data_source="my/repository"`. Tests are read, too; installed packages are not.
# - **Ask about it**: as above, or from the shell `python -m helpers.graphmer ask my/repository function called_by`.
# - **Out of memory**: lower `training_data.micro_batch_size` and raise `run.gradient_accumulation_steps` by as much, then
#   `checkpointing.activation_checkpointing=true`.
# - **From the shell**: `python -m helpers.batch notebooks/graphmer_se.ipynb --output-dir runs config=rtx3050 max_steps=10000`
#   runs so many steps; `python -m helpers.graphmer --config rtx3050` prints every key.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all.
