"""What a causal language model of transformers needs beside its method: counts, generation, learning on, and a saved copy of all.

# B batch · T tokens · W tokens of a window · V vocabulary · F lengths of a counted context
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationMixin, PreTrainedModel
from transformers.utils import cached_file

from .counts import Counts

COUNTS_FILE = "counts.safetensors"
HUB_ARGUMENTS = ("cache_dir", "revision", "subfolder", "token")


class CountingLanguageModel(PreTrainedModel, GenerationMixin):
    """Stands below the model: `counts` are `Counts`, or None for a model that knows no counts (all tokens are alike)."""

    counts: Counts | None = None
    _is_stateful = True  # the state cannot be rolled back, so no assisted decoding
    _no_split_modules = ()

    @torch.no_grad()
    def look_up(self, windows_BTW):
        """P_counts after every window [B, T, V], and how often its contexts were counted [B, T, F], on the device of the windows."""
        shape, device = windows_BTW.shape[:-1], windows_BTW.device
        if self.counts is None:
            V = self.config.vocab_size
            uniform = torch.full((*shape, V), 1 / V, device=device)
            return uniform, torch.zeros(*shape, self.config.context_lengths, device=device)
        contexts = self.counts.contexts_of(windows_BTW.flatten(0, -2).cpu().numpy())
        counted, totals = self.counts.smoothed().distributions(contexts)
        counted_BTV = torch.from_numpy(counted).to(device).view(*shape, -1)
        return counted_BTV, torch.from_numpy(totals).to(device).view(*shape, -1)

    def learn(self, input_ids) -> None:
        """Learns texts by adding them to the counts: less than a second, and no weight changes.

        Args:
            input_ids: token ids, [T] or a row a text [B, T], as a list, array, tensor, or what a tokenizer returns. Padding
                and tokens that end texts stand between texts and are not learned themselves, but for one after each text.

        Raises:
            ValueError: the model has no counts; no integers; no tokens, more than 100,000, or ids outside the vocabulary.
        """
        if self.counts is None:
            raise ValueError("learn: this model has no counts; set model.counts = Counts.fit(tokens, vocab_size, end)")
        mask = None
        if hasattr(input_ids, "keys"):
            input_ids, mask = input_ids["input_ids"], input_ids.get("attention_mask")
        rows = _rows(input_ids)
        if mask is not None:
            masks = _rows(mask)
            rows = [row[mask != 0] for row, mask in zip(rows, masks, strict=True)]
        end = self.counts.end
        stream = [np.zeros(0, dtype=np.int64)]
        for row in rows:
            row = np.where(row == self.config.pad_token_id, end, row)
            for text in np.split(row, np.flatnonzero(row == end)):
                if (text != end).any():
                    stream.append(np.append(text[text != end], end))
        self.counts.learn(np.concatenate(stream).astype(np.int64))

    def save_pretrained(self, save_directory, **kwargs):
        """As in transformers; the folder also holds the counts and the code, for `trust_remote_code=True`."""
        folder = Path(save_directory)
        self.config.auto_map = {
            "AutoConfig": "model.ReservoirConfig",
            "AutoModelForCausalLM": "model.ReservoirForCausalLM",
        }
        super().save_pretrained(folder, **kwargs)
        method = sys.modules[type(self).__module__].__file__  # which may have been edited
        this_file = Path(__file__)
        for source in (Path(method), this_file, this_file.with_name("counts.py")):
            (folder / source.name).write_bytes(source.read_bytes())
        if self.counts is not None:
            self.counts.save(folder / COUNTS_FILE)

    @classmethod
    def from_pretrained(cls, name_or_path, *args, **kwargs):
        """As in transformers, counts included."""
        hub = {key: value for key, value in kwargs.items() if key in HUB_ARGUMENTS and value}
        loaded = super().from_pretrained(name_or_path, *args, **kwargs)
        path = cached_file(name_or_path, COUNTS_FILE, _raise_exceptions_for_missing_entries=False, **hub)
        model = loaded
        if isinstance(loaded, tuple):
            model = loaded[0]
        if path:
            model.counts = Counts.load(path)
        return loaded

    # Generation carries the state in place of a key-value cache, one token a step.

    def prepare_inputs_for_generation(self, input_ids, state=None, attention_mask=None, is_first_iteration=False, **_):
        if state is not None and not is_first_iteration:
            input_ids = input_ids[:, -1:]
        elif attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise ValueError("attention_mask: padding on the right is where the next token belongs; pad on the left")
        return {"input_ids": input_ids, "state": state, "attention_mask": attention_mask}

    @staticmethod
    def _reorder_cache(state, beam_idx):
        return tuple(tensor.index_select(0, beam_idx) for tensor in state)

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, **kwargs):
        model_kwargs["state"] = outputs.state
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)

    def _prepare_cache_for_generation(self, *args, **kwargs):
        pass


def _rows(ids) -> list[np.ndarray]:
    """Token ids as rows of integers. Raises ValueError for anything else."""
    if isinstance(ids, str) or not hasattr(ids, "__len__"):
        raise ValueError(f"learn: {type(ids).__name__} in the place of token ids; give tokenizer(text)['input_ids']")
    if hasattr(ids, "cpu"):
        ids = ids.cpu().numpy()
    if not len(ids) or not hasattr(ids[0], "__len__"):
        ids = [ids]
    rows = [np.asarray(row) for row in ids]
    for row in rows:
        if row.ndim != 1 or (len(row) and row.dtype.kind not in "iu"):
            raise ValueError(
                f"learn: {row.dtype} values of shape {row.shape} in the place of token ids; give tokenizer(text)['input_ids']"
            )
    return rows
