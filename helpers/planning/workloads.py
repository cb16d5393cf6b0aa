"""The real training step of each job, on random tokens: what calibration times and tests count.

Nothing is downloaded: architectures are those of `jobs.Sizes`, weights are random. Like a notebook, and unlike every other
module here, this one knows the model packages; it imports them when a step is built.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from helpers import xla

from .jobs import HALF, Job, Sizes

# B sequences · T tokens


@dataclass
class Workload:
    """A model and how to take one step with it."""

    model: torch.nn.Module  # what is trained
    batch: Callable[[int, int], dict[str, Any]]  # (sequences, length) -> what `loss` takes
    loss: Callable[[dict[str, Any]], torch.Tensor]


class Stepper:
    """Optimizer steps of a workload on one device: forward, backward, clipping, AdamW."""

    def __init__(self, workload: Workload, kind: str, precision: str, device: torch.device):
        self.workload, self.kind, self.device, self.precision = workload, kind, device, precision
        workload.model.to(device).train()
        trained = [parameter for parameter in workload.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=kind == "cuda")
        self.trained = trained
        self.scaler = torch.amp.GradScaler("cuda", enabled=kind == "cuda" and precision == "fp16")

    def on_device(self, sequences: int, length: int) -> dict[str, Any]:
        return _moved(self.workload.batch(sequences, length), self.device)

    def autocast(self):
        if self.precision not in HALF:
            return contextlib.nullcontext()
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype=dtype)

    def step(self, batch: dict[str, Any]) -> None:
        with self.autocast():
            loss = self.workload.loss(batch)
        self.scaler.scale(loss).backward()
        del loss
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def wait(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()
        elif self.kind == "xla":
            xla.wait()


def _moved(value, device):
    if isinstance(value, dict):
        return {key: _moved(each, device) for key, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, device) for each in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def build(job: Job, precision: str = "fp32") -> Workload:
    """The workload of a job, on the CPU, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _BUILDERS[job.name](job, precision)


def _ids(sizes: Sizes, *shape: int) -> torch.Tensor:
    return torch.randint(5, sizes.vocab, shape, generator=torch.Generator().manual_seed(0))


def _bert_config(sizes: Sizes):
    from transformers import BertConfig

    return BertConfig(
        vocab_size=sizes.vocab,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        max_position_embeddings=sizes.positions,
        type_vocab_size=sizes.types,
    )


def _hardware_tuning(job: Job, precision: str) -> Workload:
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification(_bert_config(job.sizes))

    def batch(B, T):
        return {
            "input_ids": _ids(job.sizes, B, T),
            "attention_mask": torch.ones(B, T, dtype=torch.long),
            "labels": torch.arange(B) % 2,
        }

    return Workload(model, batch, lambda inputs: model(**inputs).loss)


def _lejepa_training(job: Job, precision: str) -> Workload:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    from helpers.lejepa.loss import LeJEPALoss
    from helpers.lejepa.model import freeze
    from helpers.lejepa.sigreg import SIGReg

    sizes, settings = job.sizes, job.settings
    modules = [_encoder(sizes), Pooling(sizes.width)]
    plain = {"bias": False, "activation_function": torch.nn.Identity()}
    if sizes.family == "gemma":
        modules += [Dense(sizes.width, 4 * sizes.width, **plain), Dense(4 * sizes.width, sizes.width, **plain)]
    modules.append(Dense(sizes.width, settings["output_dim"], bias=True, activation_function=torch.nn.Identity()))
    model = SentenceTransformer(modules=modules, device="cpu")
    freeze(model, settings["freeze_layers"])
    sigreg = SIGReg(t_max=3.0, n_points=17, num_slices=settings["num_slices"])
    loss = LeJEPALoss(model, sigreg, sigreg_weight=0.02, past_texts=settings["past_texts"], contrastive_weight=1.0)

    def batch(B, T):
        halves = _ids(sizes, B, T).split(B // 2)
        return {"columns": [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in halves]}

    return Workload(loss, batch, lambda inputs: loss([dict(column) for column in inputs["columns"]]))


def _encoder(sizes: Sizes):
    """sentence-transformers' module of a random encoder, which it only makes from a folder."""
    from sentence_transformers.sentence_transformer.modules import Transformer
    from tokenizers import Tokenizer, models
    from transformers import BertModel, Gemma3TextConfig, Gemma3TextModel, PreTrainedTokenizerFast

    if sizes.family == "bert":
        model = BertModel(_bert_config(sizes))
    else:
        model = Gemma3TextModel(
            Gemma3TextConfig(
                vocab_size=sizes.vocab,
                hidden_size=sizes.width,
                num_hidden_layers=sizes.layers,
                num_attention_heads=sizes.heads,
                num_key_value_heads=sizes.key_width // sizes.head_size,
                head_dim=sizes.head_size,
                intermediate_size=sizes.inner,
                max_position_embeddings=2048,
                use_bidirectional_attention=True,
            )
        )
    with tempfile.TemporaryDirectory() as folder:
        tokens = {"[PAD]": 0, "[UNK]": 1}
        tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(folder)
        model.save_pretrained(folder)
        return Transformer(folder, model_kwargs={"use_safetensors": True, "dtype": torch.float32})


def _legal_cot_sft(job: Job, precision: str) -> Workload:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from helpers.legal.loss import add_tiled_loss
    from helpers.legal.model import apply_lora

    sizes, settings = job.sizes, job.settings
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=sizes.vocab,
            hidden_size=sizes.width,
            intermediate_size=sizes.inner,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )
    base = model
    if settings["method"] == "lora":
        if job.half_base and precision == "bf16":
            for weight in model.parameters():
                weight.data = weight.data.to(torch.bfloat16)
        model = apply_lora(model, settings["lora_rank"], 2 * settings["lora_rank"])
    add_tiled_loss(base)

    def batch(B, T):
        ids = _ids(sizes, B, T)
        return {"input_ids": ids, "labels": ids.clone(), "position_ids": torch.arange(T).expand(B, T).contiguous()}

    return Workload(model, batch, lambda inputs: model(**inputs, tiled_loss=True) / inputs["labels"].numel())


def _tinystories_reservoir(job: Job, precision: str) -> Workload:
    from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM

    sizes, settings = job.sizes, job.settings
    config = ReservoirConfig(
        vocab_size=sizes.vocab,
        reservoirs=[[dict(spec) for spec in layer] for layer in settings["layers"]],
        embedding_size=sizes.width,
        readout_blocks=sizes.layers,
        readout_size=sizes.inner,
        recall_tokens=settings["recall_tokens"],
        token_dropout=0.15,
    )
    model = ReservoirForCausalLM.initialise(config, 0)

    def batch(B, T):
        return {"input_ids": _ids(sizes, B, T), "labels": _ids(sizes, B, T)}

    return Workload(model, batch, lambda inputs: model(**inputs).loss)


def _graphmer_se(job: Job, precision: str) -> Workload:
    from helpers.graphmer.architecture import GraphMERConfig
    from helpers.graphmer.model import GraphMERForPreTraining

    sizes, settings = job.sizes, job.settings
    L, H, M = settings["leaf_tokens"], settings["head_tokens"], settings["mlm_positions"]
    config = GraphMERConfig(
        vocab_size=sizes.vocab,
        num_relations=settings["relations"],
        hidden_size=sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.inner,
        leaf_tokens=L,
        max_head_tokens=H,
        embedding_size=settings["embedding_size"],
    )
    model = GraphMERForPreTraining(config)

    def batch(B, T):
        G = settings["leaves"]
        S = T - G * L
        assert S > H, f"length {T} leaves {S} roots beside {G} leaves of {L}"
        starts = torch.arange(G).expand(B, G) * (S - H) // G
        return {
            "root_ids": _ids(sizes, B, S),
            "root_segments": torch.ones(B, S, dtype=torch.long),
            "root_positions": torch.arange(S).expand(B, S).contiguous(),
            "leaf_ids": _ids(sizes, B, G, L),
            "leaf_segments": torch.ones(B, G, dtype=torch.long),
            "relation_ids": (torch.arange(B * G) % settings["relations"] + 1).view(B, G),
            "head_start": starts.contiguous(),
            "head_length": torch.full((B, G), 2),
            "mlm_positions": torch.arange(M).expand(B, M).contiguous() % S,
            "mlm_labels": _ids(sizes, B, M),
            "mnm_labels": _ids(sizes, B, G, L),
        }

    return Workload(model, batch, lambda inputs: model(**inputs).loss)


_BUILDERS = {
    "lejepa_training": _lejepa_training,
    "legal_cot_sft": _legal_cot_sft,
    "tinystories_reservoir": _tinystories_reservoir,
    "graphmer_se": _graphmer_se,
    "hardware_tuning": _hardware_tuning,
}
