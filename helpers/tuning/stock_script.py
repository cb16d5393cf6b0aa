"""Fine-tunes a text classifier with the settings that were found fastest: stock transformers, and the files beside this one.

python train.py texts.csv                    # or .jsonl, .parquet; of its rows a tenth is held out
python train.py texts.csv --text review --label stars --output trained
accelerate launch --config_file accelerate.yaml train.py texts.csv                      # several GPUs
"""

import argparse
import json
from pathlib import Path

FORMATS = {".csv": "csv", ".jsonl": "json", ".parquet": "parquet"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--text", default="text", help="column")
    parser.add_argument("--label", default="label", help="column")
    parser.add_argument("--output", default="trained", help="folder")
    asked = parser.parse_args()
    if asked.data.suffix not in FORMATS:
        parser.error(f"{asked.data}: must end in {', '.join(FORMATS)}")
    train(asked.data, asked.text, asked.label, asked.output)


def train(data: Path, text: str, label: str, output: str) -> None:
    from datasets import load_dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    here = Path(__file__).parent
    chosen, settings = (json.loads((here / name).read_text()) for name in ("model.json", "training_args.json"))
    name = str(here / chosen["model"]) if (here / chosen["model"]).exists() else chosen["model"]
    rows = load_dataset(FORMATS[data.suffix], data_files=str(data), split="train")
    for option, column in (("--text", text), ("--label", label)):
        if column not in rows.column_names:
            raise SystemExit(f"{option} {column}: no such column in {data}; there are {', '.join(rows.column_names)}")
    rows = rows.class_encode_column(label)
    labels = rows.features[label].names
    tokenizer = AutoTokenizer.from_pretrained(name, revision=chosen["revision"])
    padding = "max_length" if chosen["fixed_length"] else False
    rows = rows.map(
        lambda batch: (
            tokenizer(batch[text], truncation=True, max_length=chosen["max_length"], padding=padding)
            | {"labels": batch[label]}
        ),
        batched=True,
        remove_columns=rows.column_names,
    ).train_test_split(test_size=0.1, seed=0)
    model = AutoModelForSequenceClassification.from_pretrained(
        name,
        revision=chosen["revision"],
        id2label=dict(enumerate(labels)),
        label2id={each: number for number, each in enumerate(labels)},
        attn_implementation=chosen["attention"],
        ignore_mismatched_sizes=True,
    )
    trainer = Trainer(
        model,
        TrainingArguments(output, **settings),
        train_dataset=rows["train"],
        eval_dataset=rows["test"],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model(output)


if __name__ == "__main__":
    main()
