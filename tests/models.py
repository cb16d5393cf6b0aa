"""Tiny language models of the families that people fine-tune, with the same random weights each time."""


def tiny(family: str, **options):
    """A causal language model of a family of transformers, such as Llama, in evaluation mode."""
    import torch
    import transformers

    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, f"{family}Config")(**sizes | options)
    torch.manual_seed(0)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def with_lora(model, **options):
    """An adapter around all linear layers of a model, whose weights matter."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(target_modules="all-linear", init_lora_weights=False, **options))
