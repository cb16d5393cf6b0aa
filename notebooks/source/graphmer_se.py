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
# on packages that training never saw, beside counting, string matching and graph embeddings on the same questions; call
# graph, dependencies and violations of the ontology; and a checkpoint in safetensors.
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*); without one it runs on the CPU, with a small model.
# **Run all** and wait: what it takes in memory is printed before training, what it took in time and memory after. The TPU
# twin is `graphmer_se_tpu.ipynb`; it has the same cells.
#
# Disconnected? Run all again: with the same `output_dir` it goes on from the last checkpoint, to the same weights.

# %% [markdown] tags=["tpu"]
# # GraphMER-SE, an encoder over code and its knowledge graph (TPU)
#
# Reads source code into a **knowledge graph** (who calls, contains, inherits from, imports what), hangs its triples as
# leaves on the code's tokens, and trains an encoder to fill in what is masked of both. At the end you have link prediction
# on packages that training never saw, beside counting, string matching and graph embeddings on the same questions; call
# graph, dependencies and violations of the ontology; and a checkpoint in safetensors.
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips are used).
# Without one it warns and goes on with the GPU or the CPU. The first steps take long: XLA compiles them, once for each
# length of the curriculum. The GPU twin is `graphmer_se.ipynb`; it has the same cells.
#
# Disconnected? Run all again: with the same `output_dir` it goes on from the last checkpoint, to the same weights.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets wandb matplotlib

# %% [markdown]
# ## Parameters
#
# `data_source` is a folder of Python and Java sources (for Java also `pip install tree-sitter tree-sitter-java`), a folder
# with `triples.jsonl` and `entities.jsonl` of your own, or `"sample"`: the standard library of the Python that runs this,
# real code on every machine. `config` is a YAML file or a profile (`cpu`, `t4`, `rtx3050`, `a100`, `tpu_v5e_8`); `changes`
# sets single keys of it, `"model.num_layers=6; optimizer.lr=1e-4"`. Zeros mean "what the configuration says".

# %% tags=["parameters"]
# @title Parameters
data_source: str = "sample"  # @param {type:"string"}
config: str = "auto"  # @param ["auto", "cpu", "t4", "rtx3050", "a100", "tpu_v5e_8"] {allow-input: true}
changes: str = ""  # @param {type:"string"}
output_dir: str = "outputs/graphmer_se"  # @param {type:"string"} # gpu only
output_dir: str = "outputs/graphmer_se_tpu"  # @param {type:"string"} # tpu only
resume: bool = True  # @param {type:"boolean"}
use_tpu: bool = False  # @param {type:"boolean"} # gpu only
use_tpu: bool = True  # @param {type:"boolean"} # tpu only
precision: str = "auto"  # @param ["auto", "fp32", "bf16", "fp16"]
seed: int = 0  # @param {type:"integer"}
max_steps: int = 0  # @param {type:"integer"}
batch_size: int = 0  # @param {type:"integer"}
learning_rate: float = 0.0  # @param {type:"number"}
evaluate_triples: int = 0  # @param {type:"integer"}
compare_baselines: bool = True  # @param {type:"boolean"}
ablations: bool = False  # @param {type:"boolean"}
further_seeds: int = 0  # @param {type:"integer"}
patience: int = 0  # @param {type:"integer"}
query: str = ""  # @param {type:"string"}
report_to: str = "none"  # @param ["none", "wandb"]

# %% [markdown]
# ## Check and look around
#
# Every parameter and every key of the configuration is checked before anything slow starts, the output folder is claimed
# for this run, and the machine is reported with the reason for each choice.

# %%
from helpers import parameters, run_folder, runtime
from helpers.graphmer.configuration import to_yaml
from helpers.graphmer.parameters import GraphParameters

params = parameters.check(GraphParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision)
print(machine)
configuration = params.configuration(machine)
folder = run_folder.claim(params.output_dir, "graphmer_se", parameters.identity(params), resume=params.resume)
print(f"output     {folder.resolve()}\n")
print(to_yaml(configuration))

# %% [markdown]
# ## The knowledge graph
#
# Names are resolved through imports and scopes, not guessed; what nothing resolves is marked and never trained on. The
# ontology says which types a relation connects and what it forbids; violations are counted. Held out are whole packages,
# and no pair of entities is on both sides, in whichever order and relation.

# %%
from helpers.graphmer import experiment

corpus = experiment.load_corpus(params.data_source, configuration)
run_folder.same_data(folder, corpus.source)
counts, splits = corpus.graph.counts(), corpus.splits
print(f"{len(corpus.graph.entities):,} entities, {len(corpus.graph.triples):,} triples")
print("types    ", ", ".join(f"{name} {count:,}" for name, count in counts["types"].items()))
print("relations", ", ".join(f"{name} {count:,}" for name, count in counts["relations"].items()))
print(f"files that could not be read: {len(corpus.graph.manifest['failed'])}")
print(
    f"train {len(splits.train):,}, validation {len(splits.validation):,}, test {len(splits.test):,}; left out {splits.dropped}"
)
print(f"domain and range hold for {corpus.validity.typed_share:.2%} of the triples between known types")

# %% [markdown]
# One neighbourhood, as the graph has it.

# %%
from helpers.graphmer.neighbourhood import plot_neighbourhood

query = params.query or corpus.splits.test[0].head
figure = plot_neighbourhood(corpus.graph, query, folder / "figures" / "neighbourhood.png")

# %% [markdown]
# ## A leafy chain
#
# What the encoder reads: roots are the code's tokens, a leaf is the tail of a triple and hangs at the first token of its
# head's name. Masked are whole identifiers among the roots and whole leaves.

# %%
from helpers.graphmer.chain_text import chain_text

print(f"{len(corpus.train):,} sequences of {corpus.train.roots} roots and {corpus.train.leaves} leaves")
print("roots and leaves in use: {:.0%} and {:.0%}\n".format(*corpus.train.fill()))
print(corpus.documents.text(query, 600)[:600], "\n")
print(chain_text(corpus.train[0], corpus.tokenizer, corpus.relations))

# %% [markdown]
# ## Model and plan
#
# What will run, and why; then what it is expected to take, what that rests on, and how far off it may be. Without a
# `calibration.json` of this machine (`hardware_tuning` writes one) time is a datasheet's bound, on a CPU unknown. The
# same table with what was measured comes after training.

# %%
from helpers.graphmer.architecture import parameter_count
from helpers.graphmer.memory import estimate_run, largest_batch, run_options

model = experiment.new_model(configuration, corpus)
plan = experiment.make_plan(configuration, model, corpus, machine)
print(f"{parameter_count(model.config):,} weights\n{plan}\n")
kind = {"kind": machine.kind, "precision": machine.precision}
print(estimate_run(configuration, model.config.vocab_size, model.config.num_relations, **kind))
shape = configuration.shape(configuration.training_data.max_seq_len)
fitting = largest_batch(model.config, 8 * 10**9, *shape, **kind, **run_options(configuration))
print(f"largest micro-batch in 8 GB, by this estimate: {fitting}")

# %%
from helpers.graphmer import evaluation

forecast = experiment.forecast(configuration, model, plan, machine)
print(forecast)
before = evaluation.masked(model, corpus, configuration)

# %% [markdown]
# ## Train
#
# Every term of the loss is in the logs: masked tokens (`mlm`), masked leaves (`mnm`), the right tail among wrong ones
# (`contrastive`, `mnm_ranking`), and what the ontology forbids.

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
)
output = trainer.train(resume_from_checkpoint=params.resume)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `mfu` is the share of the named datasheet peak that was used.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. `compiles_after_warmup` and `host_syncs_per_step` must be 0: anything
# else means that shapes change or that values leave the chip at every step.

# %%
measured = trainer.results()
print("\n".join(f"{name:<28}{value}" for name, value in measured["train"].items()))
print("\n".join(f"{name:<28}{value}" for name, value in measured.get("xla", {}).items()))
print(forecast.beside(measured["train"]))

# %% [markdown]
# ## Link prediction on unseen packages
#
# For each held-out triple its tail is asked for, and its head, among all entities that the relation admits; other right
# answers are left out (filtered). `contains` and `has_parameter` can be read off qualified names, so the last column is
# without them. The encoder reads the documents of both ends: what the one asks for and what the candidates ask for, weighed
# on validation. **Strings** is a strong baseline: likeness of names, words of the source and counts, weighed there as well.

# %%
from helpers.graphmer.link_prediction import LinkPredictor

predictor = LinkPredictor(trainer.model, corpus.validation)
after = evaluation.measure(predictor, corpus, configuration)
rows = {"GraphMER-SE": after["links"], "GraphMER-SE, given end alone": after["links_by_given_end"]}
if params.compare_baselines:
    rows["GraphMER-SE with strings"] = evaluation.with_strings(predictor, corpus, configuration)
    rows |= evaluation.baselines(corpus, configuration)
if params.ablations:
    rows |= evaluation.ablations(configuration, corpus, machine, folder / "ablations")
rows |= evaluation.further_seeds(params.further_seeds, configuration, corpus, machine, folder / "seeds")
print(evaluation.table(rows))

# %%
print(evaluation.by_relation(rows))

# %% [markdown]
# ## What else it is good for
#
# F1 of calls and imports among true and wrong pairs (threshold from validation), which of several entities of one name is
# meant, code search from a docstring's first sentence without any training for it, masked tokens before and after, and how
# often the first answer contradicts the ontology.

# %%
print(evaluation.tasks_table(before, after))

# %% [markdown]
# ## Ask it

# %%
print(evaluation.answers(predictor, corpus, query))

# %% [markdown]
# ## Save and reload
#
# The reloaded model must score as the one in memory does.

# %%
from helpers.graphmer.model import GraphMERForPreTraining

trainer.save_model(str(folder / "model"))
corpus.tokenizer.save_pretrained(folder / "model")
reloaded = GraphMERForPreTraining.from_pretrained(folder / "model")
difference = evaluation.same_states(trainer.model, reloaded, corpus)
print(f"states of the reloaded model differ by at most {difference:.1e}")
if difference > 1e-3:
    raise RuntimeError(f"the model saved in {folder / 'model'} differs from the trained one")

# %%
results_file = run_folder.write_results(
    folder,
    {
        "notebook": "graphmer_se",
        "seed": params.seed,
        "runtime": machine.results(),
        **measured,
        "forecast": forecast.results(),
        "data": {
            "source": corpus.source,
            "train_examples": len(corpus.train),
            "eval_examples": len(corpus.validation),
            "entities": len(corpus.graph.entities),
            "triples": {part: len(getattr(splits, part)) for part in ("train", "validation", "test")},
        },
        "model": {"weights": parameter_count(model.config), "config": params.config, "changes": params.changes},
        "eval": {"before": {"masked": before}, "after": after, "baselines": rows},
        "artifacts": {"model": "model", "figures": "figures"},
    },
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Your own code**: `data_source="my/repository"`. Tests are read, too; installed packages and virtual environments are not.
# - **Out of memory**: lower `training_data.micro_batch_size` and raise `run.gradient_accumulation_steps` by as much, then
#   `checkpointing.activation_checkpointing=true`; in-batch negatives become fewer with the micro-batch.
# - **From the shell**: `python -m helpers.graphmer train --config rtx3050 --steps 10000` runs exactly so many steps.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all.
