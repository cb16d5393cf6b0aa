"""Fine-tunes a text classifier with the settings that were found fastest: stock transformers, and the files beside this one.

python train.py texts.csv                    # or .tsv, .jsonl, .json, .parquet; of its rows a tenth is held out
python train.py texts.csv --text review --label stars --output trained
torchrun --nproc-per-node 2 train.py texts.csv                      # two GPUs
"""

import argparse
import json
import os
import sys
from pathlib import Path

# Huge pages for a CPU's tensors; torch reads it when it is imported.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# isort: split
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


def read_texts(path: Path, text_column: str, label_column: str) -> Dataset:
    """The texts and labels of a file, read as the notebook reads it; rows that cannot be used are counted."""
    sys.path.insert(0, str(Path(__file__).parent))
    from reader.rows import SUFFIXES, SetAside, Unusable, read_rows

    def example(row):
        text, label = row.text(text_column).strip(), row.text(label_column, str | int | float).strip()
        if not text or not label:
            raise Unusable(f"no text in column `{text_column}`, or no label in column `{label_column}`")
        return {"text": text, "label": label}

    set_aside = SetAside(str(path))
    examples = list(set_aside.convert(read_rows(path, SUFFIXES, set_aside), example))
    set_aside.check()
    print(f"{len(examples)} texts\n{set_aside}")
    return Dataset.from_list(examples).class_encode_column("label")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    for option, default in (("--text", "text"), ("--label", "label"), ("--output", "trained")):
        parser.add_argument(option, default=default)
    asked = parser.parse_args()
    here = Path(__file__).parent
    chosen, fields = (json.loads((here / name).read_text()) for name in ("model.json", "training_args.json"))
    name = str(here / chosen["model"]) if (here / chosen["model"]).exists() else chosen["model"]
    tokenizer = AutoTokenizer.from_pretrained(name, revision=chosen["revision"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    rows = read_texts(asked.data, asked.text, asked.label)
    labels = rows.features["label"].names
    rows = rows.map(
        lambda row: {
            **tokenizer(row["text"], truncation=True, max_length=chosen["max_length"]),
            "labels": row["label"],
        },
        remove_columns=rows.column_names,
    ).train_test_split(0.1, seed=0)
    model = AutoModelForSequenceClassification.from_pretrained(
        name,
        **{key: chosen[key] for key in ("revision", "dtype", "attn_implementation")},
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
        pad_token_id=tokenizer.pad_token_id,
        ignore_mismatched_sizes=True,
    )
    trainer = Trainer(
        model,
        TrainingArguments(asked.output, **fields),
        train_dataset=rows["train"],
        eval_dataset=rows["test"],
        processing_class=tokenizer,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model(asked.output)


if __name__ == "__main__":
    main()
