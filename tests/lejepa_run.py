"""One small but real embedding run in its own process, for the tests that kill, resume and compare runs.

python -m tests.lejepa_run OUTPUT_DIR '{"kind": "xla", "steps": 12, ...}'  prints one line of JSON at the end.
"""

import random
from pathlib import Path

from tests import driver

DEFAULTS = driver.DEFAULTS | {
    "steps": 12,
    "batch_size": 8,
    "accumulation": 1,  # parts of a batch
    "length": 48,  # of a text in training
    "lengths": (),  # of each column, on XLA
    "dropout": 0.1,
    "logging_steps": 1,
    "save_steps": 4,
    "loss": "lejepa",  # or "ranking", the stock one
    "fits": 0,  # texts that can be embedded together in training; 0: any number
}
WORDS = "the a cat dog house river tree stone walks sees under over old new red blue quick slow with and".split()  # noqa: SIM905


def sentences(count: int, seed: int) -> list[str]:
    """Texts of 3 to 40 words."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(3, 40))) for _ in range(count)]


def build_model(folder: Path, dropout: float):
    """BERT of two layers and hidden size 32 with mean pooling and a head of 16, written to `folder` and read back."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "query", "document", ":"]
    numbers = {word: row for row, word in enumerate(vocabulary)}
    BertTokenizerFast(vocab=numbers, model_max_length=64).save_pretrained(folder)
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **sizes, **rates)
    BertModel(config).save_pretrained(folder)
    modules = [Transformer(str(folder)), Pooling(32), Dense(32, 16, activation_function=torch.nn.Identity())]
    return SentenceTransformer(modules=modules, prompts={"query": "query: ", "document": "document: "}, device="cpu")


def trainer_of(machine, folder: Path, options: dict, **changes):
    """The trainer of a run with these options; changes: of its plan."""
    import torch
    from datasets import Dataset
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from helpers.lejepa.loss import LeJEPALoss
    from helpers.lejepa.parameters import EmbeddingParameters
    from helpers.lejepa.training import new_trainer
    from tests.workloads import plan_by_hand

    model = build_model(folder / "encoder", options["dropout"])
    if options["loss"] == "ranking":
        loss = MultipleNegativesRankingLoss(model)
    else:
        loss = LeJEPALoss(model, sigreg_weight=0.05, contrastive_weight=0.1)

    def embed(module, features):
        if module.training and len(features[0]["input_ids"]) > options["fits"] > 0:
            raise torch.OutOfMemoryError("no room")

    model[0].register_forward_pre_hook(embed)
    sizes = {name: options[name] for name in ("batch_size", "accumulation", "steps", "length")}
    planned = plan_by_hand(machine, **sizes, **changes)
    texts = [text for number in range(4) for text in sentences(40, number)]
    rows = Dataset.from_dict({"query": texts, "document": [text[len(text) // 2 :] for text in texts]})
    fields = {"seed": 3, "train_length": options["length"], "save_steps": options["save_steps"]}
    params = EmbeddingParameters.defaults().model_copy(update=fields)
    lengths = dict(options["lengths"]) or dict.fromkeys(("query", "document"), options["length"])
    logging = {"logging_steps": options["logging_steps"]}
    return new_trainer(model, loss, rows, params, planned, machine, folder, lengths, **logging)


def main(output_dir: str, options: dict) -> dict:
    machine = driver.detect(options)
    import torch

    trainer = trainer_of(machine, Path(output_dir), options)
    seen = {"sharding": {}, "shapes": set(), "texts": []}

    step, tokenizer = trainer.training_step, trainer.model.tokenizer

    def watched(model, inputs, num_items_in_batch=None):
        tensors = {name: value for name, value in inputs.items() if torch.is_tensor(value)}
        seen["shapes"] |= {tuple(value.shape) for name, value in tensors.items() if name.endswith("input_ids")}
        if machine.kind == "cpu":
            seen["texts"] += tokenizer.batch_decode(inputs["query_input_ids"], skip_special_tokens=True)
        if machine.kind == "xla":
            import torch_xla

            seen["sharding"] |= {name: torch_xla._XLAC._get_xla_sharding_spec(value) for name, value in tensors.items()}
        return step(model, inputs, num_items_in_batch)

    trainer.training_step = watched
    watch = driver.watch(trainer, options)
    trainer.train()
    return {
        **trainer.results(),
        "late": watch.late,
        "losses": driver.logged(trainer, "loss"),
        "history": trainer.state.log_history,
        "part": getattr(trainer.loss, "mini_batch_size", None),
        "sharding": seen["sharding"],
        "shapes": sorted(seen["shapes"]),
        "texts": seen["texts"],
    }


if __name__ == "__main__":
    driver.serve(main, DEFAULTS)
