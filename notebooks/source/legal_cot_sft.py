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
# end you have the same held-out questions answered before and after, rates with 95 % intervals, the adapter and the merged
# model, both loaded back and compared.
#
# **Runtime**: any GPU (Colab: *Runtime > Change runtime type > T4*, which trains in fp16 with loss scaling; Kaggle: *GPU T4
# x2*, and `num_processes=0` to train on both); without one it runs on the CPU. **Run all** and wait: what it takes in memory
# is printed before training, what it took in time and memory after. The TPU twin is `legal_cot_sft_tpu.ipynb`; it has the
# same cells.
#
# What it writes is no legal advice: a model of this size invents cases.
#
# Disconnected? Run all again: with the same `output_dir` it goes on from the last checkpoint, to the same weights.

# %% [markdown] tags=["tpu"]
# # Legal chain-of-thought fine-tuning (TPU)
#
# Fine-tunes a small chat model to answer legal questions in steps: reasoning, answer, case citation, and then to stop. At the
# end you have the same held-out questions answered before and after, rates with 95 % intervals, the adapter and the merged
# model, both loaded back and compared.
#
# **Runtime**: a TPU (Colab: *Runtime > Change runtime type > v5e-1*; Kaggle: *TPU VM v5e-8*, all eight chips are used).
# Without one it warns and goes on with the GPU or the CPU. The first steps take long: XLA compiles them, once. Examples are
# packed into blocks of one length and kept apart by a mask. The GPU twin is `legal_cot_sft.ipynb`; it has the same cells.
#
# What it writes is no legal advice: a model of this size invents cases.
#
# Disconnected? Run all again: with the same `output_dir` it goes on from the last checkpoint, to the same weights.

# %% tags=["setup"]
# requirements: torch transformers accelerate datasets pydantic filelock peft trl wandb

# %% [markdown]
# ## Parameters
#
# `data_source` is a Hub data set, a path to your own `.jsonl`, `.csv` or `.parquet` with the columns id, question, answer,
# topic, difficulty, case_citation and reasoning, or `"sample"`: fictional records, which need no network. Zeros mean "what the
# recipe says"; `num_processes=0` trains on every visible GPU. Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY` into
# the runtime's secrets.

# %% tags=["parameters"]
# parameters: helpers.legal.parameters.LegalParameters

# %% [markdown]
# ## Check and look around
#
# Every parameter is checked before anything is downloaded, the output folder is claimed for this run, and the machine is
# reported with the reason for each choice.

# %%
from helpers import parameters, run_folder, runtime, secrets, tables
from helpers.legal.parameters import LegalParameters

secrets.provide("HF_TOKEN")
params = parameters.check(LegalParameters, globals())
machine = runtime.detect(params.use_tpu, params.precision, params.num_processes)
print(machine)
folder = run_folder.claim("legal_cot_sft", params)
print(f"output     {folder.resolve()}")

# %% [markdown]
# ## Data
#
# Every record is checked. What is set aside is listed by row and reason, nothing is dropped in silence; `set_aside.json`
# lists every row. Near-duplicate questions are on one side of the split.

# %%
from helpers.legal import experiment

data = experiment.load_data(params)
run_folder.same_data(folder, data.records.source)
splits = data.splits
tables.show(data.report.rows())
run_folder.write_json(folder / "set_aside.json", data.report.listed())
print(f"{len(splits.train)} to train on, {len(splits.validation)} to validate, {len(splits.test)} to test")

# %% [markdown]
# ## Model
#
# With LoRA the base model stays as it is and small matrices beside its projections are trained; their weights are fp32.

# %%
from helpers.legal.model import load_model

model, tokenizer = load_model(params, machine)
trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
print(f"{trained:,} of {sum(weight.numel() for weight in model.parameters()):,} parameters are trained")

# %% [markdown]
# ## One example before and after
#
# The loss is on the completion only, and the token at which the model must stop carries a label: a model that was never
# trained to stop does not.

# %%
encoded = experiment.encode(splits, tokenizer, params)
print(encoded.why)
print(encoded.truncation)
row = encoded.train[0]
first = next(i for i, label in enumerate(row["labels"]) if label >= 0)
print(f"\n--- read only\n{tokenizer.decode(row['input_ids'][:first])}")
print(f"--- learned\n{tokenizer.decode(row['input_ids'][first:])}")

# %% [markdown]
# ## Plan
#
# What will run, and why; then what it is expected to take, and what that rests on. Memory is counted: the training step
# runs once on tensors without numbers. Without a `calibration.json` of this machine (`hardware_tuning` writes one) time is
# a datasheet's bound, on a CPU it is not known. The same table with what was measured comes after training.

# %%
from helpers.planning import forecast as forecasts

plan, step = experiment.plan(model, encoded, params, machine)
tables.show(plan.rows())

# %%
forecast = forecasts.here(step, plan, machine)
tables.show(forecast.rows())

# %% [markdown]
# ## Before training
#
# The questions that will be asked again afterwards, the likeliest token at every step. This is the first answer: a chat
# model's own, or noise where the model is a random one.

# %%
trainer = experiment.legal_trainer(model, encoded, params, plan, step, machine, folder)

# %%
before, samples_before = experiment.examine(trainer.model, splits, encoded, params, machine)
print(samples_before[0].generated)

# %% [markdown]
# ## Train
#
# With several processes each has a GPU and its share of every batch; their lines appear here, and the weights come back into
# `trainer`.

# %%
measured = experiment.train(trainer, params)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `useful tokens` are those that are no padding; model FLOPs utilisation is the share of the
# named datasheet peak, recomputation left out.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. Compiles after warm-up and host syncs per step must be 0: anything else
# means that shapes change or that values leave the chip at every step.

# %%
tables.show(experiment.cost(measured))
tables.show(forecast.beside(measured["train"]))

# %% [markdown]
# ## After training
#
# Rates with 95 % intervals (Wilson). A citation is only checked for its shape: whether the case exists is not.

# %%
from helpers.legal import evaluation

after, samples_after = experiment.examine(trainer.model, splits, encoded, params, machine)
tables.show(evaluation.table(before, after))

# %%
print(evaluation.beside(samples_before, samples_after, 2))

# %% [markdown]
# ## Export and load back
#
# With LoRA: the adapter, and in `merged/` the whole model. Both are loaded with the ecosystem's own calls and must give the
# same logits.

# %%
from helpers.legal.export import export, reload_check

card = {
    "Data": [data.records.provenance],
    "Records": data.report.rows(examples=0),
    "Plan": plan.rows(),
    "Results": evaluation.table(before, after),
}
model_folder = export(trainer.model, tokenizer, folder / "model", base_model=params.base_model, card=card)
differences = reload_check(model_folder, trainer.model, encoded.layout.prompt_ids([params.prompt]))
tables.show([differences], "Largest difference of logits after loading back")

# %%
print(params.prompt)
print(experiment.ask(trainer.model, encoded, params.prompt, params, machine))

# %%
results_file = run_folder.write_results(
    "legal_cot_sft",
    params,
    machine,
    **measured,
    forecast=forecast.results(),
    data={
        **data.records.provenance,
        "train_examples": len(splits.train),
        "eval_examples": len(splits.validation),
        "test_examples": len(splits.test),
        "max_length": encoded.max_length,
        "block_length": encoded.block_length,
        "blocks": encoded.blocks,
        "report": data.report.as_dict(),
    },
    model={"base_model": params.base_model, "method": params.method, "trainable": trained},
    eval={"before": before, "after": after},
    artifacts={"model": "model", "set_aside": "set_aside.json", "reload": differences},
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Use the model elsewhere**: `AutoModelForCausalLM.from_pretrained("<output_dir>/model/merged")` (with LoRA), or the adapter
#   with `peft.PeftModel.from_pretrained(base, "<output_dir>/model")`.
# - **Share it**: `huggingface_hub.upload_folder(repo_id="owner/name", folder_path="<output_dir>/model")` after
#   `huggingface_hub.create_repo("owner/name", private=True)`, with a token that may write in the secret `HF_TOKEN`.
# - **Your own records**: the same columns in a `.jsonl`, `.csv` or `.parquet`; the report says which rows are set aside and why.
# - **Out of memory**: the micro-batch is halved by itself; then `gradient_checkpointing=True`, then a shorter `max_length`.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all.
