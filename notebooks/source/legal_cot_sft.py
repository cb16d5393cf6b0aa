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
# requirements: torch transformers accelerate datasets peft trl wandb

# %% [markdown]
# ## Parameters
#
# `data_source` is a Hub data set, a path to your own `.jsonl`, `.csv` or `.parquet` with the columns id, question, answer,
# topic, difficulty, case_citation and reasoning, or `"sample"`: fictional records, which need no network. Zeros mean "what the
# recipe says"; `num_processes=0` trains on every visible GPU. Tokens never belong here: put `HF_TOKEN` or `WANDB_API_KEY` into
# the runtime's secrets.

# %% tags=["parameters"]
# @title Parameters
data_source: str = "rzeraat/law"  # @param {type:"string"}
num_records: int = 0  # @param {type:"integer"}
set_aside_broken: bool = True  # @param {type:"boolean"}
base_model: str = "Qwen/Qwen2.5-0.5B-Instruct"  # @param {type:"string"}
layout: str = "chat"  # @param ["chat", "instruction"]
method: str = "lora"  # @param ["lora", "full"]
lora_rank: int = 32  # @param {type:"integer"}
lora_alpha: int = 64  # @param {type:"integer"}
max_length: int = 0  # @param {type:"integer"}
packing: str = "bfd"  # @param ["bfd", "wrapped", "padded"]
gradient_checkpointing: bool = False  # @param {type:"boolean"}
num_processes: int = 1  # @param {type:"integer"}
output_dir: str = "outputs/legal_cot_sft"  # @param {type:"string"} # gpu only
output_dir: str = "outputs/legal_cot_sft_tpu"  # @param {type:"string"} # tpu only
resume: bool = True  # @param {type:"boolean"}
use_tpu: bool = False  # @param {type:"boolean"} # gpu only
use_tpu: bool = True  # @param {type:"boolean"} # tpu only
precision: str = "auto"  # @param ["auto", "fp32", "bf16", "fp16"]
seed: int = 0  # @param {type:"integer"}
max_steps: int = 0  # @param {type:"integer"}
batch_size: int = 0  # @param {type:"integer"}
learning_rate: float = 0.0  # @param {type:"number"}
questions: str = ""  # @param {type:"string"}
test_records: int = 40  # @param {type:"integer"}
max_new_tokens: int = 512  # @param {type:"integer"}
prompt: str = "Can an employer withhold final pay until company property is returned?"  # @param {type:"string"}
patience: int = 0  # @param {type:"integer"}
logging_steps: int = 5  # @param {type:"integer"}
eval_steps: int = 50  # @param {type:"integer"}
save_steps: int = 50  # @param {type:"integer"}
report_to: str = "none"  # @param ["none", "wandb"]

# %% [markdown]
# ## Check and look around
#
# Every parameter is checked before anything is downloaded, the output folder is claimed for this run, and the machine is
# reported with the reason for each choice.

# %%
from helpers import parameters, run_folder, secrets
from helpers.legal import processes
from helpers.legal.parameters import LegalParameters

secrets.provide("HF_TOKEN")
params = parameters.check(LegalParameters, globals())
machine, workers = processes.detect(params)
print(f"{machine}\n{workers}")
folder = run_folder.claim(params.output_dir, "legal_cot_sft", parameters.identity(params), resume=params.resume)
print(f"output     {folder.resolve()}")

# %% [markdown]
# ## Data
#
# Every record is checked. What is set aside is listed by row and reason, nothing is dropped in silence. Near-duplicate
# questions are on one side of the split.

# %%
from helpers.legal import experiment

data = experiment.load_data(params)
run_folder.same_data(folder, data.source)
splits = data.splits
print(data.report)
run_folder.write_json(folder / "set_aside.json", data.report.listed())
print(f"\n{len(splits.train)} to train on, {len(splits.validation)} to validate, {len(splits.test)} to test")

# %% [markdown]
# ## Model
#
# With LoRA the base model stays as it is and small matrices beside its projections are trained; their weights are fp32.

# %%
model, tokenizer = experiment.load_model(params, machine)
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
# What will run, and why; then what it is expected to take, what that rests on, and how far off it may be. Without a
# `calibration.json` of this machine (`hardware_tuning` writes one) time is a datasheet's bound, on a CPU unknown. The
# same table with what was measured comes after training.

# %%
plan = experiment.plan(model, encoded, params, machine)
print(plan)

# %%
forecast = experiment.forecast(model, params, plan, machine)
print(forecast)

# %% [markdown]
# ## Before training
#
# The questions that will be asked again afterwards, the likeliest token at every step.

# %%
trainer = experiment.legal_trainer(model, encoded, params, plan, machine, folder)

# %%
examination = experiment.examination(splits, encoded, params)
before, samples_before = examination.take(trainer.model, encoded, params, machine)
print(samples_before[0].generated.text)

# %% [markdown]
# ## Train
#
# With several processes each has a GPU and its share of every batch; their lines appear here, and the weights come back into
# `trainer`.

# %%
measured = processes.train(trainer, params, workers)

# %% [markdown] tags=["gpu"]
# What the run cost, measured. `useful_tokens_per_second` leaves padding out; `mfu` is the share of the named datasheet peak.

# %% [markdown] tags=["tpu"]
# What the run cost, measured, compilation apart. `compiles_after_warmup` and `host_syncs_per_step` must be 0: anything
# else means that shapes change or that values leave the chip at every step.

# %%
print("\n".join(f"{name:<28}{value}" for name, value in measured["train"].items()))
print("\n".join(f"{name:<28}{value}" for name, value in measured.get("xla", {}).items()))
print(forecast.beside(measured["train"]))
print(experiment.cost(measured["train"], price_an_hour=0.0))

# %% [markdown]
# ## After training
#
# Rates with 95 % intervals (Wilson). A citation is only checked for its shape: whether the case exists is not.

# %%
from helpers.legal import evaluation

after, samples_after = examination.take(trainer.model, encoded, params, machine)
print(evaluation.table(before, after))

# %%
print(evaluation.side_by_side(samples_before, samples_after, 2))

# %% [markdown]
# ## Export and load back
#
# With LoRA: the adapter, and in `merged/` the whole model. Both are loaded with the ecosystem's own calls and must give the
# same logits.

# %%
from helpers.legal.export import export, reload_check

model_folder = export(
    trainer.model,
    tokenizer,
    folder / "model",
    base_model=params.base_model,
    card={"data": data.report.as_dict(), "plan": plan.results(), "results": {"before": before, "after": after}},
)
differences = reload_check(model_folder, trainer.model, encoded.layout.prompt_ids([params.prompt]))
print(f"largest difference of logits after loading back: {differences}")

# %%
print(params.prompt)
print(experiment.ask(trainer.model, encoded, params.prompt, params, machine))

# %%
results_file = run_folder.write_results(
    folder,
    {
        "notebook": "legal_cot_sft",
        "seed": params.seed,
        "runtime": machine.results(),
        **measured,
        "forecast": forecast.results(),
        "data": {
            "source": data.source,
            "train_examples": len(splits.train),
            "eval_examples": len(splits.validation),
            "max_length": encoded.max_length,
            "block_length": encoded.block_length,
            "blocks": encoded.blocks,
            "report": data.report.as_dict(),
        },
        "model": {"base_model": params.base_model, "method": params.method, "trainable": trained},
        "eval": {"before": before, "after": after},
        "artifacts": {"model": "model", "set_aside": "set_aside.json", "reload": differences},
    },
)
print(results_file.resolve())

# %% [markdown]
# ## Next steps
#
# - **Use the model elsewhere**: `AutoModelForCausalLM.from_pretrained("<output_dir>/model/merged")` (with LoRA), or the adapter
#   with `peft.PeftModel.from_pretrained(base, "<output_dir>/model")`.
# - **Your own records**: the same columns in a `.jsonl`, `.csv` or `.parquet`; the report says which rows are set aside and why.
# - **Out of memory**: the micro-batch is halved by itself; then `gradient_checkpointing=True`, then a shorter `max_length`.
# - **Another device**: change `use_tpu` alone, restart the kernel, Run all.
