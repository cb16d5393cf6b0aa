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
# Fine-tunes a small chat model to answer legal questions in steps: reasoning, answer, case citation, and then to stop. At the
# end you have the adapter and the merged model, and know how many held-out questions it answers rightly, before and after and
# beside copied training records, with 95 % intervals.
#
# {picture: Right verdicts on held-out questions, of the trained model and of answers that cost nothing, with 95 % intervals}
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*, which trains in fp16 with loss scaling; Kaggle: *GPU T4
# x2*, and `num_processes=0` to train on both); without one it runs on the CPU. **Run all** and wait. The TPU twin is
# `legal_cot_sft_tpu.ipynb`.
#
# {planned}
#
# What it writes is no legal advice: a model of this size invents cases.
#
# Disconnected? Run all again: with the same `output_dir` it continues from the last checkpoint and ends with the same weights.

# %% [markdown] tags=["tpu"]
# # Legal chain-of-thought fine-tuning (TPU)
#
# Fine-tunes a small chat model to answer legal questions in steps: reasoning, answer, case citation, and then to stop. At the
# end you have the adapter and the merged model, and know how many held-out questions it answers rightly, before and after and
# beside copied training records, with 95 % intervals.
#
# {picture: Right verdicts on held-out questions, of the trained model and of answers that cost nothing, with 95 % intervals}
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips).
# Without one it goes on with the GPU or the CPU. The first steps take long: XLA compiles them, once. The GPU
# twin is `legal_cot_sft.ipynb`.
#
# {planned}
#
# What it writes is no legal advice: a model of this size invents cases.
#
# Disconnected? Run all again: with the same `output_dir` it continues from the last checkpoint and ends with the same weights.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock peft trl sentence-transformers wandb matplotlib

# %% [markdown]
# ## Parameters
#
# A zero takes the recipe's value. {own data} A short row:
#
# ```
# {"question": "May the tenant leave early?", "answer": "Yes."}
# ```
#
# Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY` into the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.legal.parameters.LegalParameters

# %% [markdown]
# ## Check the parameters and the machine
#
# Every parameter is checked before anything is downloaded; each choice of the machine has its reason.

# %%
from helpers import parameters
from helpers.legal.parameters import LegalParameters
from helpers.machine import runtime
from helpers.notebook import secrets
from helpers.run import run_folder
from helpers.run.run_folder import RunFolder
from helpers.show import tables

secrets.provide("HF_TOKEN")
params = parameters.check(LegalParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision, params.num_processes)
print(machine)
run = RunFolder.claim("legal_cot_sft", params)
folder = run.path
print(f"output     {folder}")

# %% [markdown]
# ## Data
#
# Every record is checked. Records with reasoning in prose, or without reasoning or citation, are used: what is asked for is
# what they have. Near-duplicate questions are on one side of the split. Names, facts and sets of elements of the
# sample's test questions are not in training; `areas` is a second test, on other areas of law.

# %%
from helpers.legal import correctness, experiment

experiment.check(params, machine)
data = experiment.load_data(params)
run.same_data(data.records.source)
tables.show(data.report.rows())
print(data.splits)

# %% [markdown]
# ## Model
#
# With LoRA small fp32 matrices are trained beside the base model's projections, which stay as they are. With QLoRA these have
# 4 bits: a model of 7 billion weights can be trained on a T4.

# %%
from helpers.legal.model import load_model

model, tokenizer = load_model(params, machine)
trained = model.num_parameters(only_trainable=True)
print(f"{trained:,} of {model.num_parameters():,} parameters are trained")

# %% [markdown]
# ## One example before and after
#
# A record that is too long is set aside, not cut; `set_aside.json` lists by reason what is not used.

# %%
encoded = experiment.encode(data.splits, tokenizer, params)
run_folder.write_json(folder / "set_aside.json", [*map(vars, data.report.findings), *encoded.not_used])
print(encoded.why)
print(encoded.layout.shown(encoded.splits.train[0]))

# %% [markdown]
# ## Plan
#
# What will run and why, and what it is expected to take. Memory is counted: the training step runs
# once on tensors without numbers. Time rests on what others published;
# a CPU's is unknown.

# %%
from helpers.plan.forecast import here

plan, step = experiment.plan(model, encoded, params, machine)
tables.show(plan.rows())
forecast = here(step, plan, machine)
tables.show(forecast.rows())

# %% [markdown]
# ## The loss in six lines
#
# The loss is on the completion only, and on the token at which the model must stop. Two records one by one in plain code, and packed
# by the trainer into a block, where neither sees the other: both losses must be equal but for rounding.

# %%
import torch

trainer = experiment.legal_trainer(model, encoded, params, plan, step, machine, folder)
pair, nats = sorted(encoded.splits.train, key=lambda each: len(str(each)))[:2], []
packed = trainer.completion_loss([*map(encoded.layout.example, pair)])["loss"]  # no dropout from here
with torch.no_grad(), experiment.autocast(machine):
    for prompt, ids in encoded.layout.tokens(pair):
        ids = torch.tensor(ids, device=trainer.model.device)
        logits = trainer.model(ids[None]).logits[0, len(prompt) - 1 : -1].float()
        nats += torch.nn.functional.cross_entropy(logits, ids[len(prompt) :], reduction="none").tolist()
plain = sum(nats) / len(nats)
print(f"plain {plain:.6f}, packed {packed:.6f}, difference {abs(plain - packed):.0e}")

# %% [markdown]
# ## Before training
#
# The questions that are asked again afterwards, beside answers that cost nothing: one training record for every question
# (`constant`), and the one whose question is most alike. `gold` is the test record itself; a measure that it does not always
# pass is left out. Of a record's content only the cases that should be `cited` are measured.

# %%
references = experiment.references(encoded, params)
before, samples_before = experiment.examine(trainer, encoded, params)
base_answer = experiment.ask(trainer, encoded, params.prompt, params)
correctness.show(references, before)

# %% [markdown]
# ## Train
#
# Several processes have a GPU and a share of every batch each.

# %%
measured = experiment.train(trainer, params)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `useful tokens` are no padding; model FLOPs utilisation leaves recomputation out.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. Compiles after warm-up and host syncs per step must be 0: else
# shapes change, or values leave the chip at every step.

# %%
tables.show(experiment.cost(measured))
tables.show(forecast.beside(measured["train"]))

# %% [markdown]
# ## After training
#
# The same questions. A model that has learnt is ahead of `nearest training record` by more than the intervals.

# %%
after, samples_after = experiment.examine(trainer, encoded, params)
correctness.show(references, before, after)
figure = correctness.plot(references, before, after, folder / "figures" / "answers.png")

# %%
print(correctness.beside(samples_before, samples_after, 2))

# %%
results = dict(
    **measured,
    forecast=forecast.results(),
    data=encoded.results(data),
    model={"base_model": params.base_model, "method": params.method, "trainable": trained},
    eval={"before": before, "after": after, "baselines": references},
    artifacts={"set_aside": "set_aside.json", "figures": "figures"},
)
results_file = run.results(machine, **results)

# %% [markdown]
# ## Ask it
#
# The base model's answer, then the trained model's: no legal advice, and often wrong. Change `question` and run it again.

# %%
question = params.prompt
print(f"{question}\n\n--- the base model, no legal advice\n{base_answer}\n\n--- the trained model, no legal advice")
answer = experiment.ask(trainer, encoded, question, params, stream=True)

# %% [markdown]
# ## Export
#
# The results are written already. With LoRA: the adapter, and in `merged/` the whole model where disk and memory have room; with
# QLoRA the adapter alone. Every tensor is read again and must be what was trained. The model is merged in memory: this is the last
# cell that can use it.

# %%
print(*experiment.export(trainer, encoded, data, params, folder, references, before, after), sep="\n")
results["artifacts"] |= {"model": "model"}
print(run.results(machine, **results).resolve())

# %% [markdown]
# ## Next steps
#
# - **Use it elsewhere**: `AutoModelForCausalLM.from_pretrained("<output_dir>/model/merged")` (with LoRA), or the adapter with
#   `peft.PeftModel.from_pretrained(base, "<output_dir>/model")`. `model/README.md` has the commands for vLLM, llama.cpp and Ollama.
# - **Share it**: `huggingface_hub.create_repo("owner/name", private=True)`, then `upload_folder(repo_id="owner/name",
#   folder_path="<output_dir>/model")`, with a token that may write in the secret `HF_TOKEN`.
# - **Out of memory**: the micro-batch is halved by itself; then `gradient_checkpointing=True`, then a shorter `max_length`.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all.
