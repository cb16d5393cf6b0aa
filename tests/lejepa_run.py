"""One small but real embedding run in its own process, for the tests that kill, resume and compare runs.

python tests/lejepa_run.py OUTPUT_DIR '{"kind": "xla", "steps": 12, ...}'  prints one line of JSON at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

DEFAULTS = {
    "kind": "cpu",  # or "xla"
    "precision": "fp32",
    "steps": 12,
    "batch_size": 8,
    "accumulation": 1,  # of LeJEPA's loss, chunks
    "texts": 40,  # training examples: 5 steps an epoch
    "length": 48,
    "dropout": 0.1,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "eval_steps": 4,
    "save_steps": 4,
    "contrastive_weight": 0.1,
    "groups": True,  # the head learns ten times as fast, the lower layer a tenth
    "checkpointing": False,
    "batch_sampler": "batch_sampler",
    "patience": 0,
    "loss": "lejepa",  # or "ranking", which has no state of its own
    "kill_step": None,  # kill -9 inside this step, before the optimizer
    "fits": 0,  # texts that can be embedded together in training; 0: any number
    "export": None,  # where the trained model goes
}
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "house",
    "river",
    "tree",
    "stone",
    "walks",
    "sees",
    "under",
    "over",
    "old",
    "new",
    "red",
    "blue",
    "quick",
    "slow",
    "with",
    "and",
]
PROBE = ["the old cat walks under the tree", "a river", "the dog sees a blue stone and the house " * 3]


def sentences(count: int, seed: int) -> list[str]:
    """Texts of 3 to 40 words."""
    import random

    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(3, 40))) for _ in range(count)]


def build_model(folder: Path, dropout: float, *, prompts: bool = True):
    """BERT of two layers and hidden size 32 with mean pooling and a head of 16, written to `folder` and read back."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    # Given, not trained: the trainer breaks ties differently from process to process.
    vocabulary = [*special, *dict.fromkeys(WORDS), "query", "document", ":", *letters, *(f"##{one}" for one in letters)]
    tokenizer = Tokenizer(models.WordPiece({word: row for row, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    torch.manual_seed(1)
    BertModel(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        ),
        add_pooling_layer=False,
    ).save_pretrained(folder)
    encoder = Transformer(str(folder), model_kwargs={"add_pooling_layer": False})
    modules = [encoder, Pooling(32), Dense(32, 16, activation_function=torch.nn.Identity())]
    wanted = {"query": "query: ", "document": "document: "} if prompts else {}
    return SentenceTransformer(modules=modules, prompts=wanted, device="cpu")


def data(options: dict):
    """Pairs of texts and their second halves to train on."""
    from datasets import Dataset

    texts = sentences(options["texts"], 0)
    return Dataset.from_dict({"text": texts, "part": [text[len(text) // 2 :] for text in texts]})


RATES = {r"^model\.(module\.)?2\.": 1e-2, r"encoder\.layer\.0\.": 1e-4}


def retrieval():
    """Texts and their first halves to validate on."""
    from helpers.lejepa.beir import from_pairs

    return from_pairs([(text[: len(text) // 2], text) for text in sentences(21, seed=2)], "retrieval")


def main(output_dir: str, options: dict) -> dict:
    if options["kind"] == "xla":
        os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="8")
    from helpers.machine import runtime

    machine = runtime.detect(options["kind"] == "xla", precision=options["precision"])
    import torch
    import transformers

    from helpers.lejepa.experiment import RankingLoss
    from helpers.lejepa.loss import LeJEPALoss
    from helpers.lejepa.parameters import EmbeddingParameters
    from helpers.lejepa.sigreg import SIGReg
    from helpers.lejepa.training import new_trainer
    from helpers.machine import xla
    from tests.workloads import plan_by_hand

    torch.set_num_threads(1)
    output_dir = Path(output_dir)
    model = build_model(output_dir / "encoder", options["dropout"])
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    if options["loss"] == "ranking":
        loss = RankingLoss(model)
    else:
        loss = LeJEPALoss(
            model,
            SIGReg(t_max=3, n_points=17, num_slices=32),
            sigreg_weight=0.05,
            contrastive_weight=options["contrastive_weight"],
        )

    def embed(module, features):
        if module.training and len(features[0]["input_ids"]) > options["fits"] > 0:
            raise torch.OutOfMemoryError("no room")

    model[0].register_forward_pre_hook(embed)
    planned = plan_by_hand(
        machine,
        batch_size=options["batch_size"],
        accumulation=options["accumulation"],
        steps=options["steps"],
        length=options["length"],
        learning_rate=options["learning_rate"],
        gradient_checkpointing=options["checkpointing"],
    )
    asked = {name: options[name] for name in ("logging_steps", "eval_steps", "save_steps", "patience")}
    params = EmbeddingParameters.defaults().model_copy(
        update={"seed": 3, "train_length": options["length"], "report_to": "none", **asked}
    )
    trainer = new_trainer(
        model,
        loss,
        data(options),
        retrieval(),
        params,
        planned,
        machine,
        output_dir,
        learning_rate_mapping=RATES if options["groups"] else {},
        batch_sampler=options["batch_sampler"],
        eval_on_start=False,
    )
    seen = {"silent": [], "moved": [], "transfers": [], "sharding": {}, "shapes": set()}

    class Watch(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 0 and machine.kind == "cpu":
                weights = trainer.trained_module().named_parameters()
                seen["silent"] = [name for name, weight in weights if weight.grad is None or not weight.grad.any()]
            if options["kill_step"] == state.global_step + 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_step_end(self, args, state, control, **kwargs):
            if machine.kind == "xla":
                counts = xla.counters()
                seen["transfers"].append(int(counts["item_calls"] + counts["host_transfers"]))

    step = trainer.training_step

    def watched(model, inputs, num_items_in_batch=None):
        tensors = {name: value for name, value in inputs.items() if torch.is_tensor(value)}
        seen["shapes"] |= {tuple(value.shape) for name, value in tensors.items() if name.endswith("input_ids")}
        if machine.kind == "xla":
            import torch_xla

            seen["sharding"] |= {name: torch_xla._XLAC._get_xla_sharding_spec(value) for name, value in tensors.items()}
        return step(model, inputs, num_items_in_batch)

    trainer.training_step = watched
    trainer.add_callback(Watch())
    trainer.train()
    probe = None
    if options["export"] and trainer.is_world_process_zero():
        trainer.save_model(options["export"])
        features = trainer.data_collator.preprocess_fn(PROBE)
        features = {key: value.to(model.device) if torch.is_tensor(value) else value for key, value in features.items()}
        with torch.no_grad():
            probe = model.eval()(features)["sentence_embedding"].cpu().tolist()
    history = trainer.state.log_history
    after = {name: weight.detach().cpu() for name, weight in model.named_parameters()}
    return {
        **trainer.results(),
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "history": history,
        "best_step": trainer.state.best_global_step,
        "chunk": getattr(loss, "chunk", None),
        "still": [name for name in before if torch.equal(before[name], after[name])],
        "silent": seen["silent"],
        "transfers": seen["transfers"],
        "sharding": seen["sharding"],
        "shapes": sorted(seen["shapes"]),
        "groups": trainer.optimizer
        and [
            [group["initial_lr"], group["weight_decay"], sum(weight.numel() for weight in group["params"])]
            for group in trainer.optimizer.param_groups
        ],
        "probe": probe,
    }


if __name__ == "__main__":
    unknown = set(json.loads(sys.argv[2])) - set(DEFAULTS)
    assert not unknown, unknown
    outcome = main(sys.argv[1], {**DEFAULTS, **json.loads(sys.argv[2])})
    if os.environ.get("RANK", "0") == "0":
        print("RESULT " + json.dumps(outcome))
