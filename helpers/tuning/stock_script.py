"""Trains a text classifier in stock transformers with the settings beside this file, on the rows that the notebook read.

python train.py                                           # torchrun --nproc-per-node 2 train.py for two GPUs

Other data: replace train.jsonl, validation.jsonl and test.jsonl, each line an object with `text` and `label`.
"""

import json
import os
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
    name = settings["model"]
    if (folder / name).exists():
        name = str(folder / name)
    tokenizer = AutoTokenizer.from_pretrained(name, revision=settings["revision"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    files = {split: str(folder / f"{split}.jsonl") for split in ("train", "validation", "test")}
    rows = load_dataset("json", data_files=files)
    labels = sorted(set(rows["train"]["label"]))

    def encode(row: dict) -> dict:
        encoded = tokenizer(row["text"], truncation=True, max_length=settings["max_length"])
        return {**encoded, "labels": labels.index(row["label"])}

    rows = rows.map(encode, remove_columns=["text", "label"])
    model = AutoModelForSequenceClassification.from_pretrained(
        name,
        revision=settings["revision"],
        dtype="float32",
        attn_implementation=settings["attn_implementation"],
        id2label=dict(enumerate(labels)),
        label2id={label: place for place, label in enumerate(labels)},
        pad_token_id=tokenizer.pad_token_id,
        ignore_mismatched_sizes=True,
    )
    trainer = Trainer(
        model,
        TrainingArguments(str(folder / "trained"), **settings["training_arguments"]),
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=settings["pad_to_multiple_of"]),
    )
    trainer.train()
    trainer.save_model()
    output = trainer.predict(rows["test"])  # where training groups by length, the rows come in that order, too
    predicted, truth = output.predictions.argmax(-1), output.label_ids
    print(f"test F1 {f1_score(truth, predicted, labels=sorted(set(truth)), average='macro'):.3f}")


if __name__ == "__main__":
    main()
