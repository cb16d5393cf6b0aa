"""Legal chain-of-thought fine-tuning of a small chat model: records, their validation, and what the model reads."""
