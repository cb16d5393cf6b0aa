"""One small but real GraphMER run in its own process, for the tests that kill, resume and compare runs.

python -m tests.graph_run OUTPUT_DIR '{"kind": "xla", "data": "folder", "changes": {"run.max_steps": 8}}'  prints one line of JSON.
"""

from tests import driver

DEFAULTS = driver.DEFAULTS | {
    "data": None,  # folder of sources
    "changes": {},  # keys of the configuration
}
SMALL = {
    "run.seed": 3,
    "run.max_steps": 12,
    "run.log_interval": 1,
    "run.eval_interval_steps": 4,
    "run.save_interval_steps": 4,
    "hardware.device": "auto",
    "model.hidden_size": 32,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.intermediate_size": 48,
    "model.embedding_size": 16,
    "optimizer.lr": 1e-3,
    "optimizer.scheduler.warmup_steps": 2,
    "training_data.max_seq_len": 72,
    "training_data.micro_batch_size": 8,
    "encoding.leaf_tokens": 4,
    "encoding.max_leaves_per_sequence": 6,
    "encoding.entity_tokens": 12,
    "encoding.vocab_size": 600,
    "encoding.leaves_per_anchor.positive": 2,
    "encoding.leaves_per_anchor.negatives": 2,
    "model.dropout": 0.1,
    "objectives.mnm.mask_prob": 0.6,
    "objectives.mnm.type_consistent_negatives": 1,
    "objectives.mnm.hard_negatives": 1,
    "regularizers.ontology_constraints.antisymmetry_weight": 0.2,  # and so every term
    "regularizers.ontology_constraints.acyclicity_weight": 0.2,
    "evaluation.max_triples": 40,
    "run.gradient_accumulation_steps": 1,
    "training_data.short_to_long_curriculum.enabled": False,
    "checkpointing.activation_checkpointing": False,
}


def trainer_of(machine, folder: str, data: str, changes: dict, **plan_changes):
    """The trainer of a run on a folder of sources with SMALL and these changes of the configuration, and of its plan."""
    import dataclasses

    from helpers.graphmer.configuration import override, read_configuration
    from helpers.graphmer.graph.build import load_graph
    from helpers.graphmer.training import load_corpus, make_plan, new_model, new_trainer

    configuration = override(read_configuration("rtx3050"), SMALL | changes)
    corpus = load_corpus(load_graph(data), configuration)
    model = new_model(configuration, corpus)
    plan = dataclasses.replace(make_plan(configuration, model, corpus, machine), **plan_changes)
    return new_trainer(model, corpus, configuration, plan, machine, folder)


def main(output_dir: str, options: dict) -> dict:
    machine = driver.detect(options)

    share = {"training_data.micro_batch_size": SMALL["training_data.micro_batch_size"] // machine.device_count}
    trainer = trainer_of(machine, output_dir, options["data"], share | options["changes"])  # as many sequences a step
    shapes = []

    watch = driver.watch(trainer, options)
    compute_loss = trainer.compute_loss

    def watched(model, inputs, *args, **kwargs):
        if model.training:
            shapes.append(list(inputs["root_ids"].shape))
        return compute_loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = watched
    trainer.train()
    terms = [entry for entry in trainer.state.log_history if "loss" in entry]
    losses = [entry["loss"] for entry in terms]
    return {**trainer.results(), "shapes": shapes, "terms": terms, "losses": losses, "late": watch.late}


if __name__ == "__main__":
    driver.serve(main, DEFAULTS)
