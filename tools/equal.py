"""Twenty steps of every trainer on its sample: the losses to the last digit, and a digest of the weights after them.

    OMP_NUM_THREADS=1 .venv-gpu/bin/python tools/equal.py            writes docs/results/equal_cpu.json
    OMP_NUM_THREADS=1 .venv-tpu/bin/python tools/equal.py --xla      writes docs/results/equal_xla.json, from 8 virtual devices
    ... tools/equal.py --check [reservoir ...]                       compares with what is written there

A change that is meant to change no behaviour leaves every number as it is. GraphMER reads a graph from a file, so that
another resolver does not change what it learns from. The samples are of the running Python's standard library.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
STEPS, SEED = 20, 0
CADENCE = {"logging_steps": 1, "eval_steps": STEPS, "save_steps": STEPS}


def plan_of(machine, *, batch: int, length: int, rate: float):
    """The settings of a run: two micro-batches a step, or half of the batch at once on XLA, which is slow here."""
    from helpers.plan.settings import Plan

    return Plan(
        precision=machine.precision,
        per_device_batch_size=batch // machine.device_count // 2,
        gradient_accumulation_steps=1 if machine.kind == "xla" else 2,
        device_count=machine.device_count,
        learning_rate=rate,
        max_steps=STEPS,
        sequence_length=length,
        warmup_steps=2,
        weight_decay=0.01,
        max_grad_norm=1.0,
        optimizer="adamw_torch",
        gradient_checkpointing=False,
        memory={},
    )


def reservoir(machine, folder: Path):
    from helpers.reservoir.counts import Counts
    from helpers.reservoir.data import cooccurrence_codes, load_texts, tokens_of, train_tokenizer
    from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
    from helpers.reservoir.training import DrawnTokens, LanguageModelTrainer
    from helpers.train.arguments import training_arguments

    texts = load_texts("sample", num_texts=0, seed=SEED)
    tokenizer, _ = train_tokenizer(texts.train)
    end = tokenizer.eos_token_id
    train, dev = tokens_of(texts.train, tokenizer), tokens_of(texts.dev, tokenizer)
    codes = cooccurrence_codes(train, len(tokenizer), 64, SEED)
    config = ReservoirConfig(vocab_size=len(tokenizer), units=256, unit_blocks=2, reservoir_seed=SEED, eos_token_id=end)
    model = ReservoirForCausalLM.initialise(config, codes, seed=SEED)
    model.counts = Counts.fit(train, len(tokenizer), end)
    plan = plan_of(machine, batch=64, length=1, rate=2e-3)
    arguments = training_arguments(plan, machine, folder, seed=SEED, remove_unused_columns=False, **CADENCE)
    return LanguageModelTrainer(
        model=model,
        args=arguments,
        data_collator=dict,
        train_dataset=DrawnTokens(train, model, multiple_of=64, trained=True, seed=SEED),
        eval_dataset=DrawnTokens(dev, model, multiple_of=64, trained=False),
        plan=plan,
        runtime=machine,
    )


def lejepa(machine, folder: Path):
    from helpers.lejepa import data, sample
    from helpers.lejepa.loss import LeJEPALoss, views
    from helpers.lejepa.model import GaussianEmbeddingGemma, principal_head, token_spans
    from helpers.lejepa.parameters import EmbeddingParameters
    from helpers.lejepa.training import fit_lengths, new_trainer, pairs
    from helpers.train.sentence_encoder import encode, load_sentence_encoder

    params = EmbeddingParameters.defaults().model_copy(update={"train_length": 64, "seed": SEED})
    backbone = load_sentence_encoder("sample", max_seq_length=64, seed=SEED, texts=sample.texts())
    spans, limit = token_spans(backbone)
    collection = data.load("sample", num_samples=400, seed=SEED, spans=spans, limit=min(limit, 64))
    passages = [passage.text for passage in collection.passages[:200]]
    embedded = encode(backbone, passages, "document")
    model = GaussianEmbeddingGemma(backbone, principal_head(embedded, 32))
    loss = LeJEPALoss(model, sigreg_weight=0.02, contrastive_weight=1.0, seed=SEED)
    lengths = fit_lengths(model, collection.training, views, params.train_length, machine)
    plan = plan_of(machine, batch=16, length=64, rate=1e-3)
    rows = pairs(collection.training, views, STEPS, 16, SEED)
    return new_trainer(model, loss, rows, params, plan, machine, folder, lengths, logging_steps=1)


def legal(machine, folder: Path):
    from helpers.legal.data import load_records
    from helpers.legal.model import load_model
    from helpers.legal.parameters import LegalParameters
    from helpers.legal.training import ChatTemplate, LegalTrainer, encode, sft_config

    params = LegalParameters(base_model="sample", method="lora", seed=SEED)
    model, tokenizer = load_model(params, machine, dropout=0.05)
    records = load_records("sample", seed=SEED)
    rows, _, length = encode(records, ChatTemplate(tokenizer))
    plan = plan_of(machine, batch=16, length=length, rate=1e-3)
    arguments = sft_config(plan, machine, folder, length=length, seed=SEED, **CADENCE)
    train, dev = rows["train"].select(range(100)), rows["validation"].select(range(8))
    return LegalTrainer(model, arguments, train, dev, tokenizer, plan=plan, runtime=machine)


def short_name(name):
    """`tax` of `shop.goods.Thing.price(tax)`, and of a further definition of a name that name."""
    return re.split("[.(]", name.rstrip(")"))[-1].partition("#")[0]


def fixed_graph():
    """The graph of equal_graph.json; the texts of its modules have a line for each definition and each of its triples."""
    from helpers.graphmer.graph.knowledge_graph import Entity, new_graph

    stored = json.loads((ROOT / "tools" / "equal_graph.json").read_text(encoding="utf-8"))
    entities = []
    for name, kind, _short, status, module, *lines in stored["entities"]:
        entities.append(Entity(name, kind, module if status == "defined" else "", *lines))
    triples = [(entities[head].id, relation, entities[tail].id) for head, relation, tail in stored["triples"]]
    lines: dict[str, dict[int, str]] = {}
    for entity in entities:
        if entity.line:
            lines.setdefault(entity.module, {})[entity.line] = f"{entity.type} {short_name(entity.id)}"
    by_id = {entity.id: entity for entity in entities}
    for head, relation, tail in triples:
        module = lines.get(by_id[head].module, {})
        line = by_id[head].line + 1
        while line in module:
            line += 1
        if line <= by_id[head].end_line:
            module[line] = f"    {relation} {short_name(tail)}"
    modules = {}
    for module, texts in sorted(lines.items()):
        modules[module] = "\n".join(texts.get(line, "") for line in range(1, max(texts) + 1))
    return new_graph(entities, triples, modules)


def graphmer_encoder(machine, folder: Path):
    from helpers.graphmer.configuration import override, read_configuration
    from helpers.graphmer.training import load_corpus, new_model, new_trainer

    changes = {"run.seed": SEED, "model.num_layers": 2, "model.hidden_size": 64, "model.dropout": 0.1}
    changes |= {"run.log_interval": 1, "run.eval_interval_steps": STEPS, "run.save_interval_steps": STEPS}
    changes |= {"training_data.micro_batch_size": 8 // machine.device_count, "encoding.vocab_size": 1500}
    configuration = override(read_configuration("cpu"), changes)
    corpus = load_corpus(fixed_graph(), configuration)
    plan = plan_of(machine, batch=16, length=136, rate=1e-3)
    return new_trainer(new_model(configuration, corpus), corpus, configuration, plan, machine, folder)


def graphmer_search(machine, folder: Path):
    from datasets import Dataset
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from helpers.graphmer.pairs import in_batches
    from helpers.graphmer.search_training import freeze_lower_half, new_search_trainer
    from helpers.graphmer.text import Documents
    from helpers.train.sentence_encoder import load_sentence_encoder

    documents = Documents(fixed_graph())
    rows = []
    for entity in documents.graph.entities.values():
        if entity.type in ("function", "method") and entity.line:
            question = " ".join(short_name(entity.id).split("_"))
            package = entity.module.partition(".")[0]
            rows.append({"question": question, "code": documents.text(entity.id), "package": package})
    pairs = Dataset.from_list(rows)
    encoder = load_sentence_encoder("sample", texts=pairs["code"], seed=SEED, max_seq_length=64)
    freeze_lower_half(encoder)
    plan = plan_of(machine, batch=32, length=64, rate=1e-3)
    train = in_batches(pairs, batch_size=32, steps=STEPS, seed=SEED)
    dev = in_batches(pairs, batch_size=32, steps=1, seed=1)
    loss = MultipleNegativesRankingLoss(encoder)
    return new_search_trainer(encoder, train, dev, loss, plan, machine, folder, seed=SEED)


def tuning(machine, folder: Path):
    from helpers.tuning.data import load_texts
    from helpers.tuning.parameters import TuningParameters
    from helpers.tuning.training import BATCH, ClassifierTrainer, load_task

    sizes = {"max_length": 64, "learning_rate": 1e-3, "num_rows": 320, "seed": SEED}
    params = TuningParameters(data_source="sample", base_model="sample", **sizes)
    task = load_task(params, load_texts(params), machine)
    settings = task.start
    if machine.precision == "bf16":
        settings = settings | {"bf16": True}
    examples = STEPS * settings[BATCH] * machine.device_count
    return ClassifierTrainer(task, settings, folder, examples, **CADENCE)


TRAINERS = {
    trainer.__name__: trainer for trainer in (reservoir, lejepa, legal, graphmer_encoder, graphmer_search, tuning)
}


def run(name: str, machine) -> dict:
    """The losses of the steps, as they are logged, and a sha256 of all weights by their names."""
    from helpers.machine.engine import cpu_copy

    with tempfile.TemporaryDirectory() as folder:
        trainer = TRAINERS[name](machine, Path(folder))
        trainer.train(resume_from_checkpoint=False)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        digest = hashlib.sha256()
        for key, tensor in sorted(cpu_copy(trainer.model).state_dict().items()):
            digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().float().numpy().tobytes())
    return {"losses": losses, "weights": digest.hexdigest()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *TRAINERS], default=[])
    parser.add_argument("--xla", action="store_true", help="8 virtual devices of XLA, in bf16")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    if options.xla:
        os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="8")
        os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    import torch
    import transformers

    from helpers.machine import runtime

    torch.set_num_threads(1)
    machine = runtime.detect(options.xla, "bf16" if options.xla else "fp32")
    file = ROOT / "docs" / "results" / f"equal_{'xla' if options.xla else 'cpu'}.json"
    results = {name: run(name, machine) for name in options.names or TRAINERS}
    known = {}
    if file.exists():
        known = json.loads(file.read_text(encoding="utf-8"))["trainers"]
    if options.check:
        different = [name for name in results if results[name] != known[name]]
        for name in different:
            pairs = list(zip(results[name]["losses"], known[name]["losses"], strict=True))
            first = next((step for step, (now, before) in enumerate(pairs, 1) if now != before), None)
            print(f"{name}: losses differ from step {first} on" if first else f"{name}: the weights differ")
        print(f"{len(results) - len(different)} of {len(results)} trainers are equal")
        return int(bool(different))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    written = {
        "commit": commit.stdout.strip(),
        "versions": versions,
        "machine": str(machine),
        "trainers": known | results,
    }
    file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
