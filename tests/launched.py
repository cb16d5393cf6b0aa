"""A legal run that is over in seconds."""

STEPS = 4
LEGAL = {
    "data_source": "sample",
    "base_model": "sample",
    "num_records": 60,
    "layout": "instruction",
    "method": "full",
    "max_length": 384,
    "precision": "fp32",
    "max_steps": STEPS,
    "batch_size": 4,
    "learning_rate": 0.01,
    "logging_steps": 1,
    "eval_steps": STEPS // 2,
    "save_steps": STEPS // 2,
    "test_records": 1,
    "max_new_tokens": 8,
}
