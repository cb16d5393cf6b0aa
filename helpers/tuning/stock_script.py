"""Fine-tunes a text classifier with the settings that were found fastest: stock transformers, and the files beside this one.

python train.py texts.csv                    # or .jsonl, .parquet; of its rows a tenth is held out
python train.py texts.csv --text review --label stars --output trained
accelerate launch --config_file accelerate.yaml train.py texts.csv                      # several GPUs
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault(
    "THP_MEM_ALLOC_ENABLE", "1"
)  # huge pages for a CPU's tensors, which torch reads when it is imported

# isort: split
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

FORMATS = {".csv": "csv", ".jsonl": "json", ".parquet": "parquet"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    for option, default in (("--text", "text"), ("--label", "label"), ("--output", "trained")):
        parser.add_argument(option, default=default)
    asked = parser.parse_args()
    if asked.data.suffix not in FORMATS:
        parser.error(f"{asked.data}: must end in {', '.join(FORMATS)}")
    rows = load_dataset(FORMATS[asked.data.suffix], data_files=str(asked.data), split="train")
    for option, column in (("--text", asked.text), ("--label", asked.label)):
        if column not in rows.column_names:
            parser.error(f"{option} {column}: no such column in {asked.data}; there are {', '.join(rows.column_names)}")
    here = Path(__file__).parent
    chosen, fields = (json.loads((here / name).read_text()) for name in ("model.json", "training_args.json"))
    name = str(here / chosen["model"]) if (here / chosen["model"]).exists() else chosen["model"]
    tokenizer = AutoTokenizer.from_pretrained(name, revision=chosen["revision"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    rows = rows.class_encode_column(asked.label)
    labels = dict(enumerate(rows.features[asked.label].names))
    rows = rows.map(
        lambda batch: {**tokenizer(batch[asked.text], **chosen["tokens"]), "labels": batch[asked.label]},
        batched=True,
        remove_columns=rows.column_names,
    ).train_test_split(0.1, seed=0)
    model = AutoModelForSequenceClassification.from_pretrained(
        name,
        **{key: chosen[key] for key in ("revision", "dtype", "attn_implementation")},
        id2label=labels,
        label2id={label: number for number, label in labels.items()},
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
