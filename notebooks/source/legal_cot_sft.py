# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown] tags=["gpu"]
# # Legal chain-of-thought fine-tuning (GPU)
#
# This notebook fine-tunes a small chat model on **your own records**: questions with answers, with or without the reasoning that
# leads there, texts with labels, or whole conversations. At the end you have a model that writes its reasons and its answer
# in your format, on your own machine. A table says how often its answer is right, and how often the answers of a word-count classifier, of
# the nearest training record and of the original model are.
#
# **What it is for**: answers that need steps. Where the words of a text give its label away, a word-count classifier is better and trains
# in seconds; the table below shows it. Where the answer follows from several facts, a model that was trained to write the steps was ahead
# of that classifier with each of three seeds; that the steps help more than answers alone is not shown (`docs/legal.md`).
#
# {picture: Right answers to test records: the trained model and what costs nothing, with 95 % intervals}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*; Kaggle: *GPU T4 x2*, and `num_processes=0` to train on
# both); without one it runs on the CPU. Press **Run all** and wait. The TPU twin is `legal_cot_sft_tpu.ipynb`.
#
# **The defaults** are the model Qwen2.5-0.5B-Instruct (Apache-2.0, at a pinned revision) and a sample of invented law that comes with
# this notebook (its licence is the notebook's): 300 questions with their reasoning. Nothing about real law can be learned from it; put
# your own file into `data_source`. The hub cannot be reached from where this notebook is tested, so the default model was not run by us;
# the same cells were run with other models and files. What the model writes is no legal advice: a model of this size invents cases.
#
# | data on the hub | licence | to know |
# |---|---|---|
# | `rzeraat/law` | its page states none | questions about UK law, in large part written by a machine; no revision is pinned, and it was never run here |
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # Legal chain-of-thought fine-tuning (TPU)
#
# This notebook fine-tunes a small chat model on **your own records**: questions with answers, with or without the reasoning that
# leads there, texts with labels, or whole conversations. At the end you have a model that writes its reasons and its answer
# in your format, on your own machine. A table says how often its answer is right, and how often the answers of a word-count classifier, of
# the nearest training record and of the original model are.
#
# **What it is for**: answers that need steps. Where the words of a text give its label away, a word-count classifier is better and trains
# in seconds; the table below shows it. Where the answer follows from several facts, a model that was trained to write the steps was ahead
# of that classifier with each of three seeds; that the steps help more than answers alone is not shown (`docs/legal.md`).
#
# {picture: Right answers to test records: the trained model and what costs nothing, with 95 % intervals}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips). Without one it
# goes on with the GPU or the CPU. The first steps take long, because XLA compiles them once. The GPU twin is
# `legal_cot_sft.ipynb`.
#
# **The defaults** are the model Qwen2.5-0.5B-Instruct (Apache-2.0, at a pinned revision) and a sample of invented law that comes with
# this notebook (its licence is the notebook's): 300 questions with their reasoning. Nothing about real law can be learned from it; put
# your own file into `data_source`. The hub cannot be reached from where this notebook is tested, so the default model was not run by us;
# the same cells were run with other models and files. What the model writes is no legal advice: a model of this size invents cases.
#
# | data on the hub | licence | to know |
# |---|---|---|
# | `rzeraat/law` | its page states none | questions about UK law, in large part written by a machine; no revision is pinned, and it was never run here |
#
# If you are disconnected, press **Run all** again: the run goes on where it stopped and ends with the same weights, as long as its disk is
# still there. Colab and Kaggle delete the disk with the runtime, so name a second place in `keep_in` (in Colab: `drive`).

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock peft trl sentence-transformers charset-normalizer scipy wandb matplotlib

# %% [markdown]
# ## Your settings
#
# 0 = choose for me. {own data} Rows may look like any of these. Other columns are ignored:
#
# ```
# {"question": "May the tenant leave early?", "reasoning": "Step 1: ...", "answer": "Yes."}
# {"text": "Notice may be given at any time.", "label": "termination"}
# {"messages": [{"role": "user", "content": "May I leave?"}, {"role": "assistant", "content": "Yes."}]}
# {"conversations": [{"from": "human", "value": "May I leave?"}, {"from": "gpt", "value": "Yes."}]}
# ```
#
# Never paste API keys here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets. Every setting is checked before anything is
# downloaded, and each choice for the machine has its reason.

# %% tags=["parameters"]
# parameters: helpers.legal.parameters.LegalParameters

# %%
# In every process: settings
from helpers import parameters
from helpers.legal.parameters import LegalParameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.notebook.settings import say_changed
from helpers.run.disk import write_json
from helpers.run.run_folder import RunFolder
from helpers.show import tables

secrets.provide("HF_TOKEN")
params = parameters.check(LegalParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision, params.num_processes)
print(machine)
run = RunFolder.claim("legal_cot_sft", params)
print(f"output     {run.path}")

# %% [markdown]
# ## The method, in one file
#
# A **record** is a conversation. It becomes a **row**: the conversation in the model's own chat template, as tokens. The
# **labels** are what the assistant writes, up to the token that ends its turn; the model reads everything else without learning to write it. TRL's
# **trainer** packs the rows into blocks and learns the labels. Change a line below and run all cells again: your version is
# what trains, in a folder of its own.

# %% tags=["method"]
# method: helpers/legal/training.py

# %% [markdown]
# ## Data, and one record before and after
#
# Every row is checked. A row that cannot be used is set aside with its number and the reason; the run stops only if most rows cannot be
# used. Reasoning stands between `<think>` and `</think>`
# before the answer. Splits of a hub set or a folder are kept as
# they are. Of a single file one tenth is held out for validation and one tenth for the test; near-duplicate questions stay together.
#
# Then the model is loaded, and its chat template formats the records. With LoRA, small fp32 matrices are trained beside its
# projections, which stay as they are. With QLoRA the projections have 4 bits, so that a model of 7 billion weights can be trained
# on a T4. For one record the cell prints the text that is only read, and after it the text that is learned. A record that is too
# long is set aside and not cut, because a cut record would teach an answer without its reasoning.

# %%
# In every process: data and model
run.use_method()
from helpers.legal.data import load_records
from helpers.legal.model import load_model
from helpers.legal.training import ChatTemplate, encode

records = load_records(params.data_source, seed=params.seed)
run.note(data=records.source)
tables.show(records.rows())
model, tokenizer = load_model(params, machine)
trained = model.num_parameters(only_trainable=True)
print(f"{trained:,} of {model.num_parameters():,} weights are trained")
template = ChatTemplate(tokenizer)
reads = model.config.get_text_config().max_position_embeddings
rows, records, length = encode(records, template, max_length=params.max_length, reads=reads)
write_json(run.path / "set_aside.json", records.set_aside)
tables.show(records.rows(), f"Records of at most {length:,} tokens")
first = records.splits["train"][0]
prompt, text = template.prompt(first), template.text(first.messages)
print("--- read", prompt, "--- learned", text.removeprefix(prompt).rstrip(), sep="\n")

# %% [markdown]
# ## Plan, and the trainer
#
# The table says what will run and why, and the memory that it needs at least. Activations are counted on tensors without
# values. `sft_config` fills TRL's `SFTConfig` from the plan; any other field can be given by name.
#
# Last, the trainer's loss of two records that share a block is computed once more by hand, one record after the other. The two
# numbers must be equal but for rounding: neither record sees the other.

# %%
# In every process: plan and trainer
import torch

from helpers.legal.launch import make_plan
from helpers.legal.training import LegalTrainer, sft_config

plan, block = make_plan(model, rows, length, params, machine)
tables.show(plan.rows())
arguments = sft_config(plan, machine, run.path, length=block, **params.logged())
trainer = LegalTrainer(
    model=model,
    args=arguments,
    train_dataset=rows["train"],
    eval_dataset=rows["validation"],
    processing_class=tokenizer,
    plan=plan,
    runtime=machine,
    max_hours=params.max_hours,
)
packed = trainer.completion_loss(rows["train"].select(range(2)))["loss"]  # dropout is off from here
nats = []
with torch.no_grad(), trainer.compute_loss_context_manager():
    for row in rows["train"].select(range(2)):
        read = template.encode(template.text(row["prompt"], ask=True))
        ids = template.encode(template.text(row["prompt"] + row["completion"]).rstrip())
        ids = torch.tensor(ids, device=trainer.model.device)
        logits = trainer.model(ids[None]).logits[0, len(read) - 1 : -1].float()
        nats += torch.nn.functional.cross_entropy(logits, ids[len(read) :], reduction="none").tolist()
print(f"by hand {sum(nats) / len(nats):.6f}, by the trainer {packed:.6f}")

# %% [markdown]
# ## What costs nothing, and the original model
#
# The table says how often each of these gives the right answer to a test record: the answer of the nearest training record, and the model
# before training, which answers the first 20 questions alone since it seldom stops. Where there are few different answers, the most
# frequent answer and logistic regression on words stand there as well. The trained model has to be better than all of these. One turn of
# the model before training is printed.

# %%
from helpers.legal import evaluation

before = evaluation.examine(trainer, template, records, rows["test"], count=evaluation.UNTRAINED)
asked = evaluation.scored(records)
rivals = {name: [answers] for name, answers in evaluation.baselines(records).items()}
rivals[evaluation.BASE] = [before["answers"]]
tables.show(evaluation.table(evaluation.scores(rivals, asked)), "Right answers, with 95 % intervals")
print(before["samples"][0]["text"])

# %% [markdown] tags=["gpu"]
# ## Train
#
# Evaluations and checkpoints come every `save_steps` steps; the weights of the best evaluation are loaded at the end. With
# `num_processes` of more than 1, each process runs the cells that begin with `# In every process:`, as you ran them here, edits
# included, and takes its share of every batch. A cell of your own that they need must begin with such a line, too. The tables say what the run cost, measured. Tokens a second leave the padding of blocks out; the model FLOPs utilisation leaves recomputation out, too.

# %% [markdown] tags=["tpu"]
# ## Train
#
# Evaluations and checkpoints come every `save_steps` steps; the weights of the best evaluation are loaded at the end. The tables
# say what the run cost, measured, compilation apart. The number of compiles does not grow with the number of steps: otherwise shapes change.

# %%
# In every process: training
from helpers.legal.launch import train

say_changed(params, globals())
run.note(examples_a_step=plan.batch_size)
cost = train(trainer, params)
tables.show(trainer.meter.rows(cost["train"], cost.get("xla")))

# %% [markdown]
# ## Is it any good?
#
# The test records were not used for any choice. `loss` is the loss on the test records' own turns, reasoning included. The other columns
# are about what the model writes: how often it stops by itself, how often its answer is that of the record, and how
# often every step of its reasoning is. The second table compares the answers with what costs nothing.

# %%
import matplotlib.pyplot as plt

after = evaluation.examine(trainer, template, records, rows["test"])
found = evaluation.scores(rivals | {evaluation.TRAINED: [after["answers"]]}, asked)
tables.show(evaluation.written_table(before, after))
tables.show(evaluation.table(found), "Right answers, with 95 % intervals")
print(*trainer.unfinished(), *evaluation.hardly_learned(found, after, trainer), *evaluation.verdict(found), sep="\n")
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
for name, system in found["systems"].items():
    value, low, high = system["value"], system["low"], system["high"]
    errors = [[value - low], [high - value]]
    color = "tab:blue" if name == evaluation.TRAINED else "lightsteelblue"
    axes.barh(name, value, xerr=errors, color=color, capsize=3)
axes.set(title="Answers to the test records", xlabel="share that is right, with 95 % intervals", xlim=(0, 1.05))
(run.path / "figures").mkdir(exist_ok=True)
figure.savefig(run.path / "figures" / "answers.png", dpi=120)
say_changed(params, globals())
results = dict(
    **cost,
    data=records.provenance
    | {f"{name}_examples": len(each) for name, each in records.splits.items()}
    | {"block": block},
    model={"base_model": params.base_model, "method": params.method, "trainable": trained},
    eval={"before": before, "after": after, "baselines": found},
    artifacts={"set_aside": "set_aside.json", "figures": "figures"},
)
results_file = run.results(machine, **results)

# %% [markdown]
# ## Ask it
#
# The cell asks the model a question of yours with the system text of the training records, and prints its whole turn: its reasoning and
# its answer. It is no legal advice, and often wrong. Change the question and run the cell again.

# %%
# @title Ask the trained model {display-mode: "form"}
question = "Alba of Bexmoor sues Corin of Lowbrook for lost goods and asks for 480 crowns. The Ferry Lanterns Act 2090 hears a claim between different towns for more than 300 crowns. Is it heard?"  # @param {type:"string"}
print(evaluation.ask(trainer, template, records, question))

# %% [markdown]
# ## Take it with you
#
# LoRA saves the adapter, and the whole model in `merged/`. QLoRA saves the adapter alone, `method="full"` the whole model.

# %%
from helpers.legal.export import export

card = {
    "Data": [records.provenance],
    "Records": records.rows(),
    "Test records": evaluation.written_table(before, after),
    "Right answers": evaluation.table(found),
}
exported = export(
    trainer.model,
    template,
    run.path / "model",
    base_model=params.base_model,
    system=evaluation.system_text(records),
    card=card,
)
results["artifacts"] |= {"model": "model"}
print(*sorted(exported.rglob("*")), run.results(machine, **results), sep="\n")

# %% [markdown]
# ## Next steps
#
# - **Use it elsewhere**: `model/README.md` has the lines for transformers, llama.cpp, Ollama and vLLM.
# - **Share it**: `huggingface_hub.create_repo("owner/name", private=True)`, then `upload_folder(repo_id="owner/name",
#   folder_path="<output_dir>/model")`, with a token that may write in the secret `HF_TOKEN`.
# - **Out of memory**: the micro-batch is halved by itself; then set `gradient_checkpointing=True`, then a smaller `max_length`.
# - **Is the word-count classifier better?** Then use it: logistic regression on TF-IDF trains in seconds. With more records, or a larger
#   `base_model`, the language model may get ahead of it.
# - **Another device**: change `use_tpu` alone, restart the kernel and run all.
