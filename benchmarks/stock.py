"""The strongest stock way to train what a notebook trains, which benchmarks/gpu.py runs beside ours: prints one line of JSON.

    python benchmarks/stock.py legal_cot_sft FOLDER_OR_ID 5 30        # a batch of 5, for 30 steps; needs a GPU

legal_cot_sft     TRL's SFTTrainer with PEFT's LoRA, records packed by best fit, the base model in bf16 where the card has it, flash-attn if installed
lejepa_training   SentenceTransformerTrainer with MultipleNegativesRankingLoss

Nobody else trains over graphs of code, and the tuning notebook is itself a comparison with the stock Trainer.

The texts are those of the notebook's sample. Half precision where the device has it, TF32, fused AdamW, no checkpointing and no logs.
A step is measured from the end of the first one, which compiles and warms up; tokens are those that are no padding.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from datasets import Dataset
from transformers import TrainerCallback

LENGTHS = {"legal_cot_sft": 1024, "lejepa_training": 128}


class Clock(TrainerCallback):
    """The seconds at the end of the first and of the last step."""

    ends: tuple[float, ...] = ()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (1, args.max_steps):
            torch.cuda.synchronize()
            self.ends += (time.perf_counter(),)


def legal(model: str, config, length: int):
    import trl
    from peft import LoraConfig

    from helpers.legal.sample import sample_records

    rows = []
    for record in sample_records():
        answer = {"role": "assistant", "content": f"{record['reasoning']}\n{record['answer']}"}
        rows.append({"messages": [{"role": "user", "content": record["question"]}, answer]})
    loaded = {"dtype": "bfloat16"} if config["bf16"] else {}  # as ours; TRL's default is fp32
    if importlib.util.find_spec("flash_attn"):
        loaded["attn_implementation"] = "flash_attention_2"
    arguments = trl.SFTConfig(**config, packing=True, max_length=length, model_init_kwargs=loaded)
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return trl.SFTTrainer(model, arguments, train_dataset=Dataset.from_list(rows * 20), peft_config=adapters)


def lejepa(model: str, config, length: int):
    import sentence_transformers as st
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from helpers.lejepa.sample import first_pairs

    encoder = st.SentenceTransformer(model)
    encoder.max_seq_length = length
    questions, answers = zip(*first_pairs(), strict=True)
    rows = Dataset.from_dict({"anchor": questions, "positive": answers})
    arguments = st.SentenceTransformerTrainingArguments(**config)
    return st.SentenceTransformerTrainer(
        encoder, arguments, train_dataset=rows, loss=MultipleNegativesRankingLoss(encoder)
    )


TRAINERS = {"legal_cot_sft": legal, "lejepa_training": lejepa}


def main() -> None:
    notebook, model, batch, steps = sys.argv[1:]
    has_bf16 = torch.cuda.get_device_capability() >= (8, 0)
    config = {
        "output_dir": "stock",
        "max_steps": int(steps),
        "per_device_train_batch_size": int(batch),
        "bf16": has_bf16,
        "fp16": not has_bf16,
        "tf32": has_bf16 or None,
        "optim": "adamw_torch_fused",
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_strategy": "no",
    }
    trainer, clock = TRAINERS[notebook](model, config, LENGTHS[notebook]), Clock()
    trainer.add_callback(clock)
    tokens, take_step = [], trainer.training_step

    def counted(model, inputs, *rest):
        masks = [inputs[name] for name in inputs if name.endswith("attention_mask")] or [inputs["input_ids"] >= 0]
        tokens.append(sum(mask.sum() for mask in masks))
        return take_step(model, inputs, *rest)

    trainer.training_step = counted
    began = time.perf_counter()
    trainer.train()
    step = (clock.ends[-1] - clock.ends[0]) / (int(steps) - 1)
    measured = {
        "precision": "bf16" if has_bf16 else "fp16",
        "batch": int(batch),
        "micro_batch": int(batch),
        "first_step_seconds": clock.ends[0] - began,
        "step_seconds": step,
        "tokens_per_second": float(sum(tokens)) / len(tokens) / step,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
        "mfu": None,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
