"""Trains a text classifier in stock transformers with the settings beside this file.

python train.py texts.csv              # columns text and label; a tenth of the rows is the test
python train.py train.csv test.csv     # torchrun --nproc-per-node 2 train.py ... for two GPUs
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
    arguments = TrainingArguments(str(folder / "trained"), **settings["training_arguments"])
    rows = load_dataset("csv", data_files=dict(zip(("train", "test"), sys.argv[1:], strict=False)))
    if "test" not in rows:
        rows = rows["train"].train_test_split(0.1, seed=arguments.seed)
    labels = sorted({*rows["train"]["label"], *rows["test"]["label"]})
    tokenizer = AutoTokenizer.from_pretrained(**settings["model"])

    def encode(row: dict) -> dict:
        encoded = tokenizer(row["text"], truncation=True, max_length=settings["max_length"])
        return {**encoded, "labels": labels.index(row["label"])}

    rows = rows.map(encode, remove_columns=["text", "label"])
    model = AutoModelForSequenceClassification.from_pretrained(
        **settings["model"],
        dtype="float32",
        id2label={number: str(label) for number, label in enumerate(labels)},
        ignore_mismatched_sizes=True,
    )
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=settings["pad_to_multiple_of"])
    trainer = Trainer(model, arguments, collator, rows["train"], processing_class=tokenizer)
    trainer.train()
    trainer.save_model()
    output = trainer.predict(rows["test"])  # where training groups by length, the rows come in that order, too
    predicted, truth = output.predictions.argmax(-1), output.label_ids
    print(f"test F1 {f1_score(truth, predicted, labels=sorted(set(truth)), average='macro'):.3f}")


if __name__ == "__main__":
    main()
