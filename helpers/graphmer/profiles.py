"""Configurations for machines, as the YAML that `read_configuration` takes: `read_configuration("rtx3050")`.

A key that a profile leaves out has its default (`configuration.py`): 768 wide, 12 layers, 79.5M weights, 768 tokens.
The largest micro-batches are `memory.largest_batch` of 80 % of the device's memory: estimates, not measurements.
"""

_CURRICULUM = """
  short_to_long_curriculum:
    enabled: true
    schedule:
      - {steps: 0, max_seq_len: 512}
      - {steps: 15000, max_seq_len: 768}
"""

RTX3050 = f"""
run:
  mixed_precision: bf16  # the card multiplies bf16, so nothing needs loss scaling
  gradient_accumulation_steps: 2  # 32 sequences a step
hardware: {{device: cuda, num_workers: 4}}
training_data:
  max_seq_len: 768
  micro_batch_size: 16  # of 8 GB: 18 at most by estimate, 2 without activation checkpointing{_CURRICULUM}
checkpointing: {{activation_checkpointing: true}}
"""

T4 = f"""
run: {{mixed_precision: fp16}}  # no bf16
hardware: {{device: cuda, num_workers: 2}}
training_data:
  max_seq_len: 768
  micro_batch_size: 32  # of 14.6 GiB: 40 at most by estimate, 5 without activation checkpointing{_CURRICULUM}
checkpointing: {{activation_checkpointing: true}}
"""

A100 = f"""
run: {{mixed_precision: bf16, gradient_accumulation_steps: 4}}  # 32 sequences a step
hardware: {{device: cuda, num_workers: 8}}
training_data:
  max_seq_len: 768
  micro_batch_size: 8  # of 40 GB: 15 at most by estimate, 109 with activation checkpointing{_CURRICULUM}
"""

TPU_V5E_8 = f"""
run: {{mixed_precision: bf16}}
hardware: {{device: tpu, tpu_cores: 8}}
training_data:
  max_seq_len: 768
  micro_batch_size: 4  # a chip, 32 sequences a step; of 16 GB: 6 at most by estimate{_CURRICULUM}
"""

CPU = """
run:
  mixed_precision: fp32
  max_steps: 1500
  log_interval: 20
  eval_interval_steps: 250
  save_interval_steps: 250
hardware: {device: cpu}
model: {hidden_size: 192, num_layers: 4, num_heads: 6, intermediate_size: 512, embedding_size: 128}
optimizer:
  lr: 1e-3  # a small model bears more
  scheduler: {warmup_steps: 100}
training_data:
  max_seq_len: 166  # 96 roots and 10 leaves of 7 slots
  micro_batch_size: 8
objectives:
  mnm: {type_consistent_negatives: 1, hard_negatives: 1}  # their texts cost more than the code does
encoding: {entity_tokens: 16, vocab_size: 4096}
evaluation: {max_triples: 500}
"""

PROFILES = {"rtx3050": RTX3050, "t4": T4, "a100": A100, "tpu_v5e_8": TPU_V5E_8, "cpu": CPU}
