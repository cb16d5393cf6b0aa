"""A finished model as a folder that the ecosystem's own calls load: weights, tokeniser, stop tokens, model card."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from helpers import __version__, secrets
from helpers.cpu_copy import cpu_copy

from .evaluation import table
from .generation import evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MANIFEST = "export.json"
SCHEMA = 1
MERGED = "merged"  # LoRA: adapter in the folder itself, the whole model in here
CARD = ("data", "plan", "results")  # sections a card must have
LICENCES = {"Qwen/Qwen2.5-0.5B": "apache-2.0", "Qwen/Qwen2.5-0.5B-Instruct": "apache-2.0"}  # as their cards state
TOLERANCE = {"model": 1e-5, "adapter": 1e-5, "merged model": 1e-4}  # of fp32 logits; merging rounds each weight once


def export(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    base_model: str,
    revision: str | None = None,
    card: Mapping[str, Any],
) -> Path:
    """Writes `model` to `folder`, whole or not at all, and returns it; an earlier export there is replaced.

    A PEFT model gives its adapter, and in `merged/` the whole model with the adapter added to its weights, in fp32;
    another model is written in its own dtype. Both have tokeniser and generation_config. Weights are safetensors, from
    copies on the CPU.

    card: sections of the README by name, `data`, `plan` and `results` at least. Values are written as they are;
        `results` with `before` and `after` becomes a table. `licence` is that of the base model, where it is not known
        here.

    Raises ValueError where the folder holds anything that is not an export's, the card lacks a section, or the model's
    generation_config has no stop token.
    """
    folder = Path(folder).expanduser()
    if missing := [name for name in CARD if name not in card]:
        raise ValueError(f"card: no section {', '.join(missing)}; it must have {', '.join(CARD)}")
    if model.generation_config.eos_token_id is None:
        raise ValueError(
            "model.generation_config.eos_token_id=None: the exported model would never stop; "
            "call layout.set_stop_tokens(model.generation_config) first"
        )
    _check_own(folder)
    adapter = hasattr(model, "peft_config")
    copied = cpu_copy(model)
    staging = folder.with_name(f".staging-{folder.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        if adapter:
            _write_adapter(copied, tokenizer, staging, base_model, revision)
            copied = copied.float().merge_and_unload()  # added to a bf16 base, small updates would round away
        _write_model(copied, tokenizer, staging / MERGED if adapter else staging)
        kind = "adapter" if adapter else "model"
        (staging / "README.md").write_text(_readme(card, kind, base_model, revision), encoding="utf-8")
        manifest = {
            "schema": SCHEMA,
            "helpers_version": __version__,
            "kind": kind,
            "base_model": base_model,
            "revision": revision,
            "files": {path.relative_to(staging).as_posix(): _sha256(path) for path in _files(staging)},
        }
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _replace(folder, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _write_adapter(model, tokenizer, folder: Path, base_model: str, revision: str | None) -> None:
    for name, config in list(model.peft_config.items()):
        model.peft_config[name] = own = copy.deepcopy(config)
        own.base_model_name_or_path, own.revision = base_model, revision
    # "auto" would ask the hub whether the vocabulary grew; it never does here.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's template, full of placeholders
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_model(model, tokenizer, folder: Path) -> None:
    model.config.use_cache = True  # training switches it off
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_own(folder: Path) -> None:
    """Raises ValueError where the folder holds something that no export wrote."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; nothing was touched: choose another folder")
    present = {path.relative_to(folder).as_posix() for path in _files(folder)}
    foreign = sorted(present - {MANIFEST, *_manifest(folder)["files"]} if MANIFEST in present else present)
    if foreign:
        raise ValueError(
            f"folder={str(folder)!r} holds files that no export wrote ({', '.join(foreign[:4])}"
            f"{', ...' if len(foreign) > 4 else ''}); nothing was touched: choose another folder, or move them away"
        )


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA or not isinstance(manifest["files"], dict):
            raise ValueError(f"schema {manifest['schema']}")
    except FileNotFoundError as error:
        raise ValueError(f"folder={str(folder)!r}: no {MANIFEST}, so it is no export; call export() first") from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"folder={str(folder)!r}: {MANIFEST} cannot be read ({error}); choose another folder"
        ) from error
    return manifest


def _replace(folder: Path, staging: Path) -> None:
    old = folder.with_name(f".discarded-{folder.name}")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


# ---- model card


def _readme(card: Mapping[str, Any], kind: str, base_model: str, revision: str | None) -> str:
    """The model card: what was passed in, and nothing else."""
    licence = card.get("licence") or LICENCES.get(base_model)
    title = str(card.get("title") or f"{base_model.rstrip('/').rpartition('/')[2]}, fine-tuned on legal reasoning")
    hub_id = base_model.count("/") == 1 and not Path(base_model).exists()
    front = {"license": licence, "base_model": base_model if hub_id else None, "pipeline_tag": "text-generation"}
    front["library_name"] = "peft" if kind == "adapter" else "transformers"
    lines = ["---", *(f"{name}: {value}" for name, value in front.items() if value), "---", "", f"# {title}", ""]
    at = f" at revision `{revision}`" if revision else ""
    lines += [f"Base model: `{base_model}`{at}. Its licence: {licence or 'not known here; see the base model'}.", ""]
    if kind == "adapter":
        lines += [
            f"This folder holds the LoRA adapter (`peft.PeftModel.from_pretrained`), `{MERGED}/` the whole model "
            "(`transformers.AutoModelForCausalLM.from_pretrained`).",
            "",
        ]
    for name, content in card.items():
        if name not in ("title", "licence"):
            lines += [f"## {name[:1].upper()}{name[1:].replace('_', ' ')}", "", *_section(content), ""]
    return "\n".join(lines)


def _section(content: Any) -> list[str]:
    if not isinstance(content, Mapping):
        return [str(content)]
    lines, rest = [], dict(content)
    if isinstance(rest.get("before"), Mapping) and isinstance(rest.get("after"), Mapping):
        lines = ["```", table(rest.pop("before"), rest.pop("after")), "```", ""]
    return [*lines, *(f"- {name}: {_written(value)}" for name, value in rest.items())]


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_written(item)}" for name, item in value.items())
    return " ".join(str(value).split())


# ---- what was written is what was trained


def reload_check(
    folder: str | Path, model: PreTrainedModel, prompts_ids: Sequence[Sequence[int]], *, max_new_tokens: int = 16
) -> dict[str, float]:
    """Loads an export back with the ecosystem's own calls and compares it with `model`, on the CPU in fp32.

    Returns the largest difference of logits on the prompts: `model` by AutoModelForCausalLM, and for LoRA `adapter` by
    PeftModel on the base weights of `model`. Raises ValueError where it is above 1e-5, or 1e-4 of a merged model (times the
    largest logit, where that is above 1), where greedy tokens differ, or where a file has changed since it was written.
    """
    from transformers import AutoModelForCausalLM

    folder = Path(folder).expanduser()
    manifest = _manifest(folder)
    for name, digest in manifest["files"].items():
        if not (folder / name).is_file() or _sha256(folder / name) != digest:
            raise ValueError(f"folder={str(folder)!r}: {name} is missing or has changed; export again")
    reference = cpu_copy(model).float()
    adapter = manifest["kind"] == "adapter"
    whole = AutoModelForCausalLM.from_pretrained(folder / MERGED if adapter else folder, dtype=torch.float32)
    differences = {
        "model": _compare(reference, whole, prompts_ids, max_new_tokens, "merged model" if adapter else "model")
    }
    if adapter:
        from peft import PeftModel

        base = copy.deepcopy(reference).unload()
        loaded = PeftModel.from_pretrained(base, str(folder))
        differences["adapter"] = _compare(reference, loaded, prompts_ids, max_new_tokens, "adapter")
    return differences


def _compare(reference, loaded, prompts_ids, max_new_tokens: int, what: str) -> float:
    worst = 0.0
    with evaluating(reference), evaluating(loaded), torch.no_grad():
        for ids in prompts_ids:
            ids_1T = torch.tensor([list(ids)])
            expected, got = reference(input_ids=ids_1T).logits, loaded(input_ids=ids_1T).logits
            difference = (expected - got).abs().max().item()
            worst = max(worst, difference)
            if not difference <= TOLERANCE[what] * max(1.0, expected.abs().max().item()):
                raise ValueError(
                    f"the {what} read back differs from the trained one by {difference:.2g} in a logit; do not use "
                    "this export, and report what base model and LoRA settings it has"
                )
            tokens = [
                m.generate(
                    input_ids=ids_1T,
                    attention_mask=torch.ones_like(ids_1T),
                    max_new_tokens=max_new_tokens,
                    do_sample=False,
                ).tolist()
                for m in (reference, loaded)
            ]
            if tokens[0] != tokens[1]:
                raise ValueError(
                    f"the {what} read back writes other tokens than the trained one; do not use this export"
                )
    return worst


# ---- the hub, on request


def push(folder: str | Path, repo_id: str, token_from_environment: str = "HF_TOKEN", *, private: bool = True) -> str:
    """Uploads an export to the Hugging Face hub and returns its address; only where somebody calls it.

    token_from_environment: the name of the variable (or of the Colab or Kaggle secret) that holds a token with write
        access. The token itself is never a parameter and never in a message.

    Raises ValueError (no export, repo_id without owner), PermissionError (no token, or one that may not write there),
    ConnectionError (hub not reachable).
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    folder = Path(folder).expanduser()
    files = [*_manifest(folder)["files"], MANIFEST]
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ValueError(f'repo_id={repo_id!r}: must be "owner/name", such as "your-name/legal-cot-lora"')
    if not secrets.provide(token_from_environment):
        raise PermissionError(
            f"{token_from_environment} is not set: make a token with write access at "
            f"https://huggingface.co/settings/tokens and store it as the secret {token_from_environment} (Colab, "
            f"Kaggle), or in the environment variable of that name"
        )
    token = os.environ[token_from_environment]
    api = huggingface_hub.HfApi(token=token)
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=folder, allow_patterns=files)
    except HFValidationError as error:
        raise ValueError(f"repo_id={repo_id!r}: {error}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        said = str(error).replace(token, "...").splitlines()[0]
        if status in (401, 403):
            raise PermissionError(
                f"repo_id={repo_id!r}: the hub refused the token in {token_from_environment} ({said}); it must have "
                f"write access to {repo_id.split('/')[0]}"
            ) from None
        raise ConnectionError(f"repo_id={repo_id!r}: the hub answered {said}; try again later") from None
    except (OSError, HfHubHTTPError.__bases__[0]) as error:  # the base of its HTTP client, which changes by version
        said = str(error).replace(token, "...")
        raise ConnectionError(f"repo_id={repo_id!r}: the hub cannot be reached ({said}); try again later") from None
    return f"https://huggingface.co/{repo_id}"
