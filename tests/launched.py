"""A legal run that is over in seconds."""

STEPS = 4
LEGAL = {
    "data_source": "sample",
    "base_model": "sample",
    "method": "full",
    "max_length": 384,
    "precision": "fp32",
    "max_steps": STEPS,
    "batch_size": 4,
    "learning_rate": 0.01,
    "save_steps": STEPS // 2,
}
