"""Configurations for machines, as the YAML that `read_configuration` takes: `read_configuration("rtx3050")`.

A key that a profile leaves out has its default (`configuration.py`): 768 wide, 12 layers, 80.3M weights, 768 tokens.
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
  micro_batch_size: 8  # of 40 GB: 16 at most by estimate, 110 with activation checkpointing{_CURRICULUM}
"""

TPU_V5E_8 = f"""
run: {{mixed_precision: bf16}}
hardware: {{device: tpu, tpu_cores: 8}}
training_data:
  max_seq_len: 768
  micro_batch_size: 4  # a chip, 32 sequences a step; of 16 GB: 6 at most by estimate{_CURRICULUM}
"""

# Found by trying (docs/graphmer.md): what a core trains in half an hour is a small model on many triples, each of them
# asked for, and nothing else.
CPU = """
run:
  mixed_precision: fp32
  max_steps: 2000
  log_interval: 20
  eval_interval_steps: 500
  save_interval_steps: 500
hardware: {device: cpu}
model: {hidden_size: 128, num_layers: 3, num_heads: 4, intermediate_size: 256, embedding_size: 128, dropout: 0.0}
optimizer:
  lr: 1.5e-3  # a small model bears more
  scheduler: {warmup_steps: 100}
training_data:
  max_seq_len: 136  # 96 roots and 10 leaves of 4 slots
  micro_batch_size: 24
objectives:
  mnm: {mask_prob: 0.9, type_consistent_negatives: 0, hard_negatives: 0, ranking_weight: 0.0}  # in-batch tails are enough
  triple: {weight: 0.0}
  scoring: {weight: 0.0}
encoding:
  vocab_size: 6000
  windows_per_document: 8
  leaf_tokens: 4
  entity_tokens: 20
  max_leaves_per_sequence: 10
  leaves_per_anchor: {positive: 8, negatives: 0}
regularizers: {ontology_constraints: {antisymmetry_weight: 0.0, acyclicity_weight: 0.0}}
evaluation: {max_triples: 500}
"""

PROFILES = {"rtx3050": RTX3050, "t4": T4, "a100": A100, "tpu_v5e_8": TPU_V5E_8, "cpu": CPU}
