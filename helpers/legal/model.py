"""The language model that is fine-tuned: from the hub, a local path or made on the spot, whole or through LoRA."""

import tempfile

from helpers.data import hub
from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.parameters import SAMPLE

from .parameters import LegalParameters
from .sample import sample_records
from .template import ChatTemplate

QWEN = "Qwen/Qwen2.5-0.5B-Instruct"
REVISIONS = {QWEN: "7ae557604adf67be50417f59c2c2f167def9a775"}  # of the hub; of other models the newest is read
NO_TPU = (
    "method='qlora': bitsandbytes has no kernels for a TPU. Use method='lora', whose frozen weights take 16 bits there, or "
    "a GPU with use_tpu=False"
)
TURN_END = "<|im_end|>"


def load_model(params: LegalParameters, runtime: Runtime, *, dropout: float = 0.0):
    """A causal language model on the CPU, ready to be fine-tuned, and its tokeniser.

    Weights that are trained are fp32. With LoRA in half precision the frozen base has it, too, and the adapter is fp32.
    With QLoRA the base is read onto the GPU where there is one, and its projections have 4 bits. The tokeniser and its
    template are checked before any weight is downloaded, and generation stops at what the layout trains.

    Raises ValueError for 4 bits on a TPU, and as `ChatTemplate` and `hub.reading`.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, set_seed

    if params.method == "qlora" and runtime.kind == "xla":
        raise ValueError(NO_TPU)
    name, dtype = params.base_model, frozen_dtype(params.method, runtime.precision)
    options = {"revision": REVISIONS.get(name), "trust_remote_code": False}
    weights = options | {"dtype": dtype}
    if params.method == "qlora":  # Dettmers et al. 2023: NF4, its scales quantised too, products in `dtype`
        weights["device_map"] = {"": "cpu"}
        if runtime.kind == "cuda":
            weights["device_map"] = {"": ranks.local()}
        weights["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    with hub.reading(name="base_model", source=name):
        tokenizer = sample_tokenizer() if name == SAMPLE else AutoTokenizer.from_pretrained(name, **options)
    template = ChatTemplate(tokenizer)
    with tempfile.TemporaryDirectory() as folder, hub.reading(name="base_model", source=name):
        source = name
        if name == SAMPLE:  # four bits are made where weights are read
            source = folder
            sample_model(len(tokenizer), tokenizer.eos_token_id, params.seed).save_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, **weights)
    if name == SAMPLE:
        model.name_or_path = ""
    set_seed(params.seed)  # of the adapter
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):  # bitsandbytes, where an evaluation rounds the scales for good
            layer.support_avx512bf16_for_cpu = False
    model.generation_config.eos_token_id = template.stop_token_ids()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    if params.method == "full":
        return model, tokenizer
    return apply_lora(model, params.lora_rank, dropout=dropout), tokenizer


def frozen_dtype(method: str, precision: str):
    """dtype of the base model's weights: half precision where they stay as they are, fp32 where they are trained."""
    import torch

    half = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if method == "full":
        return torch.float32
    return half.get(precision, torch.float32)


def apply_lora(model, r: int, *, dropout: float = 0.0):
    """LoRA (Hu et al. 2021) on every linear projection but the head: fp32 adapters of rank `r` beside frozen weights.

    The update is scaled by 2; dropout is on the adapter's input.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(task_type="CAUSAL_LM", r=r, lora_alpha=2 * r, lora_dropout=dropout, target_modules="all-linear")
    return get_peft_model(model, config)


# ---- the sample model


def sample_tokenizer():
    """Qwen2.5's kind of tokeniser, with its chat template and special tokens, of 600 entries trained on the sample."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer
    from trl.chat_template_utils import qwen2_5_chat_template

    texts = ["\n".join(record.values()) for record in sample_records()]
    tokenizer = Qwen2Tokenizer(chat_template=qwen2_5_chat_template).train_new_from_iterator(
        texts,
        600,
        new_special_tokens=["<|im_start|>", TURN_END],
        initial_alphabet=sorted(ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.eos_token = TURN_END
    return tokenizer


def sample_model(vocabulary: int, end_token: int, seed: int):
    """A random Qwen2 of two layers, 128 wide; what runs with it runs with Qwen2.5."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, set_seed

    set_seed(seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            initializer_range=128**-0.5,  # 0.02, made for wide models, leaves attention flat for thousands of steps
            bos_token_id=None,
            eos_token_id=end_token,
            pad_token_id=None,
        )
    )
