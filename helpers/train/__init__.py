"""The mixin over the Hugging Face trainers, checkpoints, interruption and metering."""
