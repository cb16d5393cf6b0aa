"""A finished model as a folder that the ecosystem's own calls load: weights, tokeniser, stop tokens, model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from helpers import tables
from helpers.cpu_copy import cpu_copy

from .generation import evaluating
from .model import pinned_revision

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MANIFEST = "export.json"  # names of all files of an export
MERGED = "merged"  # LoRA: adapter in the folder itself, the whole model in here
LICENCES = {"Qwen/Qwen2.5-0.5B": "apache-2.0", "Qwen/Qwen2.5-0.5B-Instruct": "apache-2.0"}  # as their cards state
TOLERANCE = {"model": 1e-5, "adapter": 1e-5, "merged model": 1e-4}  # of fp32 logits; merging rounds each weight once


def export(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    base_model: str,
    card: Mapping[str, Any],
) -> Path:
    """Writes `model` to `folder`, whole or not at all, and returns it; an earlier export there is replaced.

    A PEFT model gives its adapter, and in `merged/` the whole model with the adapter added to its weights, in fp32, unless
    these have 4 bits; another model is written in its own dtype. Both have tokeniser and generation_config. Weights are safetensors, from
    copies on the CPU.

    card: sections of the README by title, each a text, a mapping, or rows of a table.

    Raises ValueError where the folder holds anything that is not an export's, or the model's generation_config has no
    stop token.
    """
    folder = Path(folder).expanduser()
    if model.generation_config.eos_token_id is None:
        raise ValueError(
            "model.generation_config.eos_token_id=None: the exported model would never stop; "
            "call layout.set_stop_tokens(model.generation_config) first"
        )
    _check_own(folder)
    adapter = hasattr(model, "peft_config")
    merges = adapter and not in_four_bits(model)
    copied = cpu_copy(model) if merges or not adapter else model
    staging = folder.with_name(f".staging-{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        if adapter:
            for config in copied.peft_config.values():
                config.base_model_name_or_path, config.revision = base_model, pinned_revision(base_model)
            # "auto" would ask the hub whether the vocabulary grew; it never does here.
            copied.save_pretrained(staging, save_embedding_layers=False)
            copied.generation_config.save_pretrained(staging)
            tokenizer.save_pretrained(staging)
        if merges:
            copied = copied.float().merge_and_unload()  # added to a bf16 base, small updates would round away
        if merges or not adapter:
            whole = staging / MERGED if adapter else staging
            copied.config.use_cache = True  # training switches it off
            copied.save_pretrained(whole)
            tokenizer.save_pretrained(whole)
        (staging / "README.md").write_text(_readme(card, adapter, merges, base_model), encoding="utf-8")
        (staging / MANIFEST).write_text(json.dumps({"files": _files(staging)}, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def in_four_bits(model) -> bool:
    """Whether the weights that are not trained are bitsandbytes', which cannot be copied to a CPU or merged."""
    return getattr(model, "is_loaded_in_4bit", False)


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def _check_own(folder: Path) -> None:
    """Raises ValueError where the folder holds something that no export wrote."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; nothing was touched: choose another folder")
    manifest = folder / MANIFEST
    own = {MANIFEST, *json.loads(manifest.read_text(encoding="utf-8"))["files"]} if manifest.is_file() else ()
    if foreign := [name for name in _files(folder) if name not in own]:
        raise ValueError(
            f"folder={str(folder)!r} holds files that no export wrote ({', '.join(foreign[:4])}"
            f"{', ...' if len(foreign) > 4 else ''}); nothing was touched: choose another folder, or move them away"
        )


# ---- model card


def _readme(card: Mapping[str, Any], adapter: bool, merged: bool, base_model: str) -> str:
    """The model card: what was passed in, and nothing else."""
    from huggingface_hub import ModelCardData

    hub_id = base_model.count("/") == 1 and not Path(base_model).exists()
    licence = LICENCES.get(base_model)
    front = ModelCardData(
        license=licence,
        base_model=base_model if hub_id else None,
        pipeline_tag="text-generation",
        library_name="peft" if adapter else "transformers",
    )
    revision = pinned_revision(base_model)
    at = f" at revision `{revision}`" if revision else ""
    paragraphs = [
        f"---\n{front.to_yaml()}\n---",
        f"# {Path(base_model).name}, fine-tuned on legal reasoning",
        f"Base model: `{base_model}`{at}. Its licence: {licence or 'not known here; see the base model'}.",
    ]
    if adapter:
        beside = f"`{MERGED}/` the whole model (`transformers.AutoModelForCausalLM.from_pretrained`)"
        base = "trained beside a base in 4 bits (NF4): load the base in 4 or 16 bits, and merge into 16"
        paragraphs += [
            f"This folder holds the LoRA adapter (`peft.PeftModel.from_pretrained`), {beside if merged else base}."
        ]
    for title, content in card.items():
        if isinstance(content, Mapping):
            content = "\n".join(f"- {name}: {value}" for name, value in content.items())
        paragraphs += [f"## {title}", content if isinstance(content, str) else tables.markdown(content)]
    return "\n\n".join(paragraphs) + "\n"


# ---- what was written is what was trained


def reload_check(folder: str | Path, model: PreTrainedModel, prompts_ids: Sequence[Sequence[int]]) -> dict[str, float]:
    """Loads an export back with the ecosystem's own calls and compares it with `model`, on the CPU in fp32.

    Returns the largest difference of logits on the prompts: `model` by AutoModelForCausalLM, and for LoRA `adapter`, read
    by PEFT beside the weights of `model`; where these have 4 bits, which is done where they are, nothing else. Raises
    ValueError where it is above 1e-5, or 1e-4 of a merged model (times the largest logit, where that is above 1).
    """
    from transformers import AutoModelForCausalLM

    folder = Path(folder).expanduser()
    quantised, adapter = in_four_bits(model), (folder / "adapter_config.json").is_file()
    reference = model if quantised else cpu_copy(model).float()
    expected, differences = _logits(reference, prompts_ids), {}
    if adapter:
        (active,) = reference.active_adapters
        reference.load_adapter(str(folder), "read_back")
        reference.set_adapter("read_back")
        try:
            differences["adapter"] = _difference(expected, _logits(reference, prompts_ids), "adapter")
        finally:
            reference.set_adapter(active)
            reference.delete_adapter("read_back")
    del reference  # of a large model two do not fit
    if not quantised:
        whole = AutoModelForCausalLM.from_pretrained(folder / MERGED if adapter else folder, dtype=torch.float32)
        what = "merged model" if adapter else "model"
        differences["model"] = _difference(expected, _logits(whole, prompts_ids), what)
    return differences


def _logits(model, prompts_ids: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    with evaluating(model), torch.no_grad():
        return [model(input_ids=torch.tensor([list(ids)], device=model.device)).logits.cpu() for ids in prompts_ids]


def _difference(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor], what: str) -> float:
    worst = 0.0
    for logits, found in zip(expected, got, strict=True):
        difference = (logits - found).abs().max().item()
        worst = max(worst, difference)
        if not difference <= TOLERANCE[what] * max(1.0, logits.abs().max().item()):
            raise ValueError(
                f"the {what} read back differs from the trained one by {difference:.2g} in a logit; do not use "
                "this export, and report what base model and LoRA settings it has"
            )
    return worst
