"""Trains a text classifier in stock transformers with the settings and the model beside this file.

python train.py texts.csv     # columns text and label; torchrun --nproc-per-node 2 train.py texts.csv for two GPUs
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages for a CPU's tensors; torch reads it when it is imported

# isort: split
from datasets import load_dataset
from sklearn.metrics import f1_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


def main() -> None:
    folder = Path(__file__).resolve().parent
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    length, multiple = settings.pop("max_length"), settings.pop("pad_to_multiple_of", None)
    arguments = TrainingArguments(str(folder / "trained"), **settings)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows = load_dataset("csv", data_files=sys.argv[1])["train"].class_encode_column("label")
    labels = dict(enumerate(rows.features["label"].names))
    rows = rows.map(lambda row: tokenizer(row["text"] or "", truncation=True, max_length=length))
    rows = rows.train_test_split(0.1, seed=arguments.seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "model", dtype="float32", id2label=labels, ignore_mismatched_sizes=True
    )
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)
    trainer = Trainer(model, arguments, collator, rows["train"], processing_class=tokenizer)
    trainer.train()
    trainer.save_model()
    output = trainer.predict(rows["test"])  # where training groups by length, the rows come in that order, too
    f1 = f1_score(output.label_ids, output.predictions.argmax(-1), average="macro")
    print(f"F1 on a tenth of the texts: {f1:.3f}")


if __name__ == "__main__":
    main()
