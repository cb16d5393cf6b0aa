"""What a causal language model of transformers needs beside its method: counts, generation, learning on, and a saved copy of all.

# B batch · T tokens · W tokens of a window · V vocabulary · F lengths of a counted context
"""

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
    """Stands below the model, which has its counts from `from_pretrained`; a new one is given them: `model.counts = Counts.fit(...)`."""

    counts: Counts
    _is_stateful = True  # the state cannot be rolled back, so no assisted decoding
    _no_split_modules = ()

    @torch.no_grad()
    def look_up(self, windows_BTW):
        """P_counts after every window [B, T, V], and how often its contexts were counted [B, T, F], on the device of the windows."""
        shape, device = windows_BTW.shape[:-1], windows_BTW.device
        contexts = self.counts.contexts_of(windows_BTW.flatten(0, -2).cpu().numpy())
        counted, totals = self.counts.smoothed().distributions(contexts)
        counted_BTV = torch.from_numpy(counted).to(device).view(*shape, -1)
        return counted_BTV, torch.from_numpy(totals).to(device).view(*shape, -1)

    def learn(self, texts) -> None:
        """Learns texts by adding them to the counts: less than a second, and no weight changes.

        Args:
            texts: the token ids of each text, as `tokenizer(texts)["input_ids"]` has them, without the token that ends texts.

        Raises:
            ValueError: no token ids, more than 100,000, or ids outside the vocabulary.
        """
        streams = []
        for text in texts:
            ids = np.asarray(text)
            if ids.ndim != 1 or ids.dtype.kind != "i":
                raise ValueError(f"learn: {text!r:.50} is no list of token ids; give tokenizer(texts)['input_ids']")
            streams += [ids, [self.counts.end]]
        self.counts.learn(np.concatenate([[], *streams]).astype(np.int64))

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
        self.counts.save(folder / COUNTS_FILE)

    @classmethod
    def from_pretrained(cls, name_or_path, *args, **kwargs):
        """As in transformers, counts included."""
        hub = {key: value for key, value in kwargs.items() if key in HUB_ARGUMENTS and value}
        loaded = super().from_pretrained(name_or_path, *args, **kwargs)
        path = cached_file(name_or_path, COUNTS_FILE, **hub)
        loaded.counts = Counts.load(path)
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
