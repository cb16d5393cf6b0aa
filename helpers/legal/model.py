"""The language model that is fine-tuned: from the hub, a local path or made on the spot, whole or through LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.legal.layout import Layout, response
from helpers.legal.records import SAMPLE_RECORDS, Record
from helpers.legal.sample import sample_records
from helpers.runtime import Runtime

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

QWEN = "Qwen/Qwen2.5-0.5B-Instruct"
QWEN_REVISION = "7ae557604adf67be50417f59c2c2f167def9a775"
METHODS = ("lora", "full")
LORA_RANK, LORA_ALPHA, LORA_DROPOUT = 32, 64, 0.05
SAMPLE_VOCABULARY = 2000
SAMPLE_POSITIONS = 2048
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def load_model(
    base_model: str = QWEN,
    *,
    runtime: Runtime,
    method: str = "lora",
    layout: str = "chat",
    rank: int = LORA_RANK,
    alpha: int = LORA_ALPHA,
    dropout: float = LORA_DROPOUT,
    seed: int = 0,
    revision: str | None = None,
) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    """A causal language model on the CPU, ready to be fine-tuned, and its tokeniser.

    Weights that are trained are fp32. With LoRA in bf16 the frozen base is bf16 and the adapter fp32. The tokeniser and
    its template are checked before any weight is downloaded, and generation stops at what the layout trains.

    Args:
        base_model: hub id, local path, or "sample": a small random Qwen2 whose tokeniser is trained on the sample.
        runtime: decides the dtype of frozen weights.
        method: "lora" or "full".
        layout: "chat" or "instruction", as for `Layout`.
        rank, alpha, dropout: of the adapter.
        seed: of the sample model and the adapter.
        revision: branch, tag or commit of a hub id; None is the pinned one of the default model, else the newest.

    Raises:
        ValueError: an unknown method or layout, or a tokeniser without chat template for layout="chat".
        FileNotFoundError: no such local path or hub id.
        PermissionError: a gated model and no token that may read it.
        ConnectionError: the hub cannot be reached and nothing is cached.
    """
    import torch
    from transformers import AutoModelForCausalLM, set_seed

    if method not in METHODS:
        raise ValueError(f"method={method!r}: must be one of {', '.join(METHODS)}")
    revision = revision or (QWEN_REVISION if base_model == QWEN else None)
    set_seed(seed)
    tokenizer = sample_tokenizer() if base_model == "sample" else load_tokenizer(base_model, revision)
    laid_out = Layout(tokenizer, layout)
    dtype = torch.bfloat16 if method == "lora" and runtime.precision == "bf16" else torch.float32
    if base_model == "sample":
        model = sample_model(len(tokenizer), tokenizer.eos_token_id, seed)
        for weight in model.parameters():  # not the rotary frequencies, which are not saved and stay fp32 when loaded
            weight.data = weight.data.to(dtype)
    else:
        with _HubErrors(base_model):
            model = AutoModelForCausalLM.from_pretrained(base_model, revision=revision, dtype=dtype)
    laid_out.set_stop_tokens(model.generation_config)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # only fills blocks; labels say what is trained
    if method == "full":
        return model, tokenizer
    # A base model never saw the token that ends a turn: its embedding is as it was initialised, and LoRA leaves it so.
    untrained = [] if laid_out.stop_token_id == tokenizer.eos_token_id else [laid_out.stop_token_id]
    return apply_lora(model, rank, alpha, dropout=dropout, trained_tokens=untrained), tokenizer


def apply_lora(
    model: PreTrainedModel, r: int, alpha: int, *, dropout: float = LORA_DROPOUT, trained_tokens: Sequence[int] = ()
) -> PeftModel:
    """LoRA (Hu et al. 2021) on every linear projection but the head: fp32 adapters beside frozen weights.

    Args:
        r: rank.
        alpha: the update is scaled by alpha / r.
        dropout: on the adapter's input.
        trained_tokens: ids whose embeddings, and rows of the head, are trained too.

    Raises ValueError for a rank or alpha below 1 and a dropout outside [0, 1).
    """
    from peft import LoraConfig, get_peft_model

    for name, value in (("lora_rank", r), ("lora_alpha", alpha)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    if not 0 <= dropout < 1:
        raise ValueError(f"lora_dropout={dropout}: must be at least 0 and below 1")
    embeddings = _names(model, model.get_input_embeddings()) + (
        [] if model.config.get_text_config().tie_word_embeddings else _names(model, model.get_output_embeddings())
    )
    return get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=r,
            lora_alpha=alpha,
            lora_dropout=dropout,
            target_modules="all-linear",
            trainable_token_indices={name: [*trained_tokens] for name in embeddings} if trained_tokens else None,
        ),
    )


def _names(model, wanted) -> list[str]:
    return [name for name, module in model.named_modules() if module is wanted]


def load_tokenizer(base_model: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokeniser of a hub id or local path. Raises as `load_model` does."""
    from transformers import AutoTokenizer

    path = Path(base_model).expanduser()
    if not path.is_dir() and (base_model.count("/") != 1 or base_model.startswith((".", "/", "~"))):
        raise FileNotFoundError(
            f'base_model={base_model!r}: no such folder. Use a hub id "owner/name" such as "{QWEN}", a local path, or "sample"'
        )
    with _HubErrors(base_model):
        return AutoTokenizer.from_pretrained(base_model, revision=revision)


class _HubErrors:
    """Turns what transformers raises for a model that cannot be had into what to do about it."""

    def __init__(self, base_model: str):
        self.base_model = base_model

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type, error, _traceback) -> None:
        if not isinstance(error, OSError):
            return
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

        causes, cause = [], error
        while cause is not None and cause not in causes:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        name = f"base_model={self.base_model!r}"
        if any(isinstance(cause, GatedRepoError) for cause in causes):
            raise PermissionError(
                f"{name}: this model is gated. Accept its licence at https://huggingface.co/{self.base_model}, then put a "
                "token that may read it into the secret or environment variable HF_TOKEN; or use an open model such as "
                f"{QWEN}"
            ) from error
        if any(isinstance(cause, RepositoryNotFoundError | RevisionNotFoundError) for cause in causes):
            raise FileNotFoundError(
                f"{name}: the hub has no such model or revision, or it is private and HF_TOKEN may not read it"
            ) from error
        if Path(self.base_model).expanduser().is_dir():
            raise FileNotFoundError(f"{name}: the folder holds no model that can be read ({error})") from error
        raise ConnectionError(
            f'{name}: the Hugging Face hub cannot be reached ({error}). Use base_model="sample" or a local path'
        ) from error


# ---- the sample model


def sample_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE like Qwen2.5's, with its chat template and special tokens, of 2,000 entries trained on the sample."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SAMPLE_VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    records = [Record(**texts) for texts in sample_records(SAMPLE_RECORDS, 0)]
    backend.train_from_iterator([f"{record.question}\n{response(record)}" for record in records], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHATML,
        clean_up_tokenization_spaces=False,
    )


def sample_model(vocabulary: int, end_token: int, seed: int) -> PreTrainedModel:
    """A random Qwen2 of two layers, 64 wide; what runs with it runs with Qwen2.5."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, set_seed

    set_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=SAMPLE_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end_token,
            pad_token_id=None,
        )
    )
