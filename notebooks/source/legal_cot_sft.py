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
# It fine-tunes a small chat model on **your own records**: questions with answers, with or without the reasoning, texts with labels, or conversations.
# You leave with a model that writes its reasons and its answer in your format, and with a table of how often it is right.
#
# **What it is for**: answers that follow from several facts. Where words give the label away, a classifier that counts words is better; the table shows
# it. That written steps help more than answers alone is not shown (`docs/legal.md`).
#
# {picture: Right answers to test records: the trained model and what costs nothing, with 95 % intervals}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*; Kaggle: *GPU T4 x2*, with `num_processes=0` to train on both), or the CPU.
# Press **Run all**.
#
# **The defaults** are Qwen2.5-0.5B-Instruct (Apache-2.0) and 300 questions on invented law. We ran these cells with other models and files.
# `rzeraat/law`, questions about UK law, states no licence and is mostly written by a machine. What the model writes is no legal advice.
#
# If you are disconnected, press **Run all** again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so
# set `keep_in` (in Colab: `drive`).

# %% [markdown] tags=["tpu"]
# # Legal chain-of-thought fine-tuning (TPU)
#
# It fine-tunes a small chat model on **your own records**: questions with answers, with or without the reasoning, texts with labels, or conversations.
# You leave with a model that writes its reasons and its answer in your format, and with a table of how often it is right.
#
# **What it is for**: answers that follow from several facts. Where words give the label away, a classifier that counts words is better; the table shows
# it. That written steps help more than answers alone is not shown (`docs/legal.md`).
#
# {picture: Right answers to test records: the trained model and what costs nothing, with 95 % intervals}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips), else the GPU or the CPU. Press
# **Run all**. XLA compiles the first steps, which takes long.
#
# **The defaults** are Qwen2.5-0.5B-Instruct (Apache-2.0) and 300 questions on invented law. We ran these cells with other models and files.
# `rzeraat/law`, questions about UK law, states no licence and is mostly written by a machine. What the model writes is no legal advice.
#
# If you are disconnected, press **Run all** again: the run goes on, as long as its disk is there. Colab and Kaggle delete the disk with the runtime, so
# set `keep_in` (in Colab: `drive`).

# %% [markdown]
# ## Your settings
#
# 0 = choose for me. {own data} Rows may look like any of these; other columns are ignored:
#
# ```
# {"question": "May the tenant leave early?", "reasoning": "Step 1: ...", "answer": "Yes."}
# {"text": "Notice may be given at any time.", "label": "termination"}
# {"messages": [{"role": "user", "content": "May I leave?"}, {"role": "assistant", "content": "Yes."}]}
# {"conversations": [{"from": "human", "value": "May I leave?"}, {"from": "gpt", "value": "Yes."}]}
# ```
#
# Never paste API keys here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.legal.parameters.LegalParameters

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock peft trl sentence-transformers charset-normalizer scipy wandb matplotlib

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
# A record becomes a **row**: its conversation in the model's own chat template, as tokens. The model learns what the assistant writes, and reads
# everything else. TRL's trainer packs the rows into blocks. **Change a line below and run all cells again: your version is what trains**, in a
# folder of its own.

# %% tags=["method"]
# method: helpers/legal/training.py

# %% [markdown]
# ## Data, and one record before and after
#
# A row that cannot be used is set aside with its number and the reason; the run stops only if most rows are. Of a single file one tenth is for
# validation and one tenth for the test; splits of a folder or a hub set are kept. A record that is too long is set aside and not cut: it would teach an
# answer without its reasoning. For one record the cell prints what is only read, and what is learned.

# %%
# In every process: data and model
run.use_method()
from helpers.legal.data import load_records
from helpers.legal.model import load_model
from helpers.legal.training import ChatTemplate, encode

records = load_records(params.data_source, seed=params.seed)
run.note(data=records.provenance)
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
# The table says what will run and why. Last, the trainer's loss of two records in one block is computed once more by hand, one after the other: both
# numbers must be equal but for rounding.

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
# Rivals: the answer of the nearest training record, the model before training (the first 20 questions, since it seldom stops), and, where there
# are few different answers, the most frequent one, and linear models on words and on what the untrained model makes of a question (a probe). One turn of
# the model before training is printed.

# %%
from helpers.legal import evaluation

before = evaluation.examine(trainer, template, records, rows["test"], count=evaluation.UNTRAINED)
asked = records.splits["test"][: evaluation.SCORED]
with trainer.compute_loss_context_manager():
    simple = evaluation.baselines(trainer.model, template, records, asked)
rivals = {name: evaluation.right(answers, asked) for name, answers in simple.items()}
rivals[evaluation.BASE] = [sample[evaluation.RIGHT] for sample in before["samples"]]
tables.show(evaluation.table(evaluation.scores(rivals, asked)), "Right answers, with 95 % intervals")
print(before["samples"][0]["text"])

# %% [markdown] tags=["gpu"]
# ## Train
#
# The weights of the best evaluation are loaded at the end. With `num_processes` of more than 1, each process runs the cells that begin with
# `# In every process:`, as you ran them here, edits included. The table says what the run cost, measured.

# %% [markdown] tags=["tpu"]
# ## Train
#
# The weights of the best evaluation are loaded at the end. The table says what the run cost, compilation apart. The number of compiles does not grow
# with the number of steps.

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
# The test records chose nothing. The first table says how often the model stops by itself, and how often its answer and every step of its reasoning are
# those of the record. The second compares the answers with what costs nothing.

# %%
import matplotlib.pyplot as plt

after = evaluation.examine(trainer, template, records, rows["test"])
found = evaluation.scores(
    rivals | {evaluation.TRAINED: [sample[evaluation.RIGHT] for sample in after["samples"]]}, asked
)
written = []
for name, model_results in ((evaluation.BASE, before), (evaluation.TRAINED, after)):
    written.append({"model": name, "loss": model_results["completion"]["loss"], **model_results["form"]})
tables.show(written, "Test records: loss, and shares of what is written")
tables.show(evaluation.table(found), "Right answers, with 95 % intervals")
print(*trainer.unfinished(), *evaluation.verdict(found, after, trainer), sep="\n")
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

# %%
# @title Ask the trained model (no legal advice, and often wrong) {display-mode: "form"}
# @markdown Empty asks the last test question.
question = ""  # @param {type:"string"}
question = question or records.splits["test"][-1].question
print(question, evaluation.ask(trainer, template, records, question), sep="\n\n")

# %% [markdown]
# ## Take it with you
#
# LoRA saves the adapter, and the whole model in `merged/`; QLoRA the adapter alone; `method="full"` the whole model.
#
# - **Use it elsewhere**: `model/README.md` has the lines for transformers, llama.cpp and vLLM.
# - **Share it**: `huggingface_hub.upload_folder(repo_id="owner/name", folder_path="<output_dir>/model")`, with a token that may write in `HF_TOKEN`.
# - **Out of memory**: the micro-batch is halved by itself; then set `gradient_checkpointing=True`, then a smaller `max_length`.

# %%
from helpers.legal.export import export

card = {
    "Data": [records.provenance],
    "Records": records.rows(),
    "Test records": written,
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
