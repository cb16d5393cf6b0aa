"""F1, accuracy and the threshold of two labels, which is chosen on validation alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# N texts · C labels
IGNORED = -100  # label of a row that only fills a batch


def probabilities(logits_NC: np.ndarray) -> np.ndarray:
    """Softmax over the labels, [N, C]."""
    from scipy.special import softmax

    return softmax(np.asarray(logits_NC, dtype=np.float64), axis=1)


def predict(logits_NC: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """Positions of labels, [N]: the likeliest, or of two labels the second where its probability reaches the threshold."""
    if threshold is None:
        return np.asarray(logits_NC).argmax(axis=1)
    return (probabilities(logits_NC)[:, 1] >= threshold).astype(int)


def scores(logits_NC: np.ndarray, labels_N: Sequence[int], threshold: float | None = None) -> dict[str, float]:
    """`f1` (of the positive label of two, else the mean over labels), `accuracy` and mean `log_loss` in nats."""
    from sklearn.metrics import accuracy_score, f1_score

    labels_N = np.asarray(labels_N)
    predicted_N, C = predict(logits_NC, threshold), np.asarray(logits_NC).shape[1]
    average = "binary" if C == 2 else "macro"
    chosen_N = probabilities(logits_NC)[np.arange(len(labels_N)), labels_N]
    present = None if C == 2 else np.unique(labels_N)  # a label without a row has no F1
    return {
        "f1": float(f1_score(labels_N, predicted_N, labels=present, average=average, zero_division=0)),
        "accuracy": float(accuracy_score(labels_N, predicted_N)),
        "log_loss": float(-np.log(np.maximum(chosen_N, 1e-12)).mean()),
    }


def choose_threshold(logits_NC: np.ndarray, labels_N: Sequence[int]) -> float | None:
    """The probability of the second of two labels from which on F1 is best on these rows; None for more labels."""
    from sklearn.metrics import precision_recall_curve

    if np.asarray(logits_NC).shape[1] != 2:
        return None
    precision, recall, thresholds = precision_recall_curve(labels_N, probabilities(logits_NC)[:, 1])
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[f1[:-1].argmax()])


def class_weights(labels_N: Sequence[int], count: int) -> np.ndarray:
    """Weights of `count` labels, each N / (count x rows of the label): over the rows their mean is 1."""
    rows_C = np.bincount(np.asarray(labels_N), minlength=count)
    if not rows_C.all():
        raise ValueError(f"class_weights=True: label {int(rows_C.argmin())} has no training row; raise num_rows")
    return len(labels_N) / (count * rows_C)
