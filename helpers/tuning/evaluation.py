"""F1, accuracy and the threshold of two labels, which is chosen on validation alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import softmax

# N texts · C labels
IGNORED = -100  # label of a row that only fills a batch


def predict(logits_NC: np.ndarray, threshold: float | None = None) -> np.ndarray:
    """Positions of labels, [N]: the likeliest, or of two labels the second where its probability reaches the threshold."""
    if threshold is None:
        return logits_NC.argmax(axis=1)
    return (softmax(logits_NC, axis=1)[:, 1] >= threshold).astype(int)


def scores(logits_NC: np.ndarray, labels_N: Sequence[int], threshold: float | None = None) -> dict[str, float]:
    """`f1` (of the positive label of two, else the mean over labels), `accuracy` and mean `log_loss` in nats."""
    from sklearn.metrics import accuracy_score, f1_score

    logits_NC = np.asarray(logits_NC, dtype=np.float64)
    predicted_N, C = predict(logits_NC, threshold), logits_NC.shape[1]
    chosen_N = softmax(logits_NC, axis=1)[np.arange(len(labels_N)), labels_N]
    # A label without a row has no F1.
    of = {"average": "binary"} if C == 2 else {"average": "macro", "labels": np.unique(labels_N)}
    return {
        "f1": float(f1_score(labels_N, predicted_N, zero_division=0, **of)),
        "accuracy": float(accuracy_score(labels_N, predicted_N)),
        "log_loss": float(-np.log(np.maximum(chosen_N, 1e-12)).mean()),
    }


def choose_threshold(logits_NC: np.ndarray, labels_N: Sequence[int]) -> float | None:
    """The probability of the second of two labels from which on F1 is best on these rows; None for more labels."""
    from sklearn.metrics import precision_recall_curve

    if logits_NC.shape[1] != 2:
        return None
    probability_N = softmax(np.asarray(logits_NC, dtype=np.float64), axis=1)[:, 1]
    precision, recall, thresholds = precision_recall_curve(labels_N, probability_N)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[f1[:-1].argmax()])
