"""GraphMER with its training objectives: masked tokens, masked leaves, the right tail among others, and the ontology's terms.

A saved model takes this folder with it, to be loaded elsewhere with `trust_remote_code=True`.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModelForPreTraining

from .configuration_graphmer import GraphMERConfig
from .copy_head import CopyHead, LeafTokens, NameTokens
from .encoder import INPUTS, GraphMERModel, GraphMEROutput, GraphMERPreTrainedModel
from .graph_attention import relation_product
from .objectives import (
    IGNORED,
    contrastive_loss,
    cycle_loss,
    token_loss,
    triple_loss,
    unit,
)

# B batch · S roots · G leaves · L leaf tokens · D width · M masked roots · U negatives · C tokens of an entity's text
# E entity embedding · R relations · V vocabulary · P = B G

LABELS = (
    "mlm_positions",
    "mlm_labels",
    "mnm_labels",
    "triple_labels",
    "tail_text_ids",
    "tail_entities",
    "negative_text_ids",
    "known_BGX",
    "head_text_ids",
    "head_entities",
)
OF_ENTITIES = ("tail_text_ids", "tail_entities", "known_BGX")
OF_TRIPLES = (*OF_ENTITIES, "head_text_ids", "head_entities")
NEEDED = {
    "mlm": ("mlm_positions", "mlm_labels"),
    "mnm": ("mnm_labels",),
    "triple": ("triple_labels",),
    "contrastive": ("mnm_labels", *OF_ENTITIES),
    "scoring": OF_TRIPLES,
    "antisymmetry": OF_TRIPLES,
    "acyclicity": OF_TRIPLES,
}
OVER_ENTITIES = ("contrastive", "scoring", "antisymmetry", "acyclicity")


class TokenBias(nn.Module):
    """Bias of the head over the vocabulary, whose matrix is the embedding's."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x: torch.Tensor, embedding_VD: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, embedding_VD, self.weight)


class TripleScorer(nn.Module):
    """s(h, r, t) = cos(M_r h, t) of entity embeddings [..., E]: a full matrix a relation, so that s(h, r, t) is not s(t, r, h)."""

    def __init__(self, relations: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(relations, size, size))

    def expected_tail(self, heads_PE: torch.Tensor, relation_P: torch.Tensor) -> torch.Tensor:
        """Unit vectors [P, E] where the tails should be. Relation 0 reads as 1; what comes of it must not be counted."""
        moved_PE = relation_product(heads_PE[:, None], (relation_P - 1).clamp(min=0), self.weight).squeeze(1)
        return unit(moved_PE)

    def forward(self, heads_PE: torch.Tensor, relation_P: torch.Tensor, tails_PE: torch.Tensor) -> torch.Tensor:
        return (self.expected_tail(heads_PE, relation_P) * tails_PE).sum(-1)


class GraphMERForPreTraining(GraphMERPreTrainedModel):
    """The encoder with a head for masked tokens, for triples, for queries and for entities."""

    _keys_to_ignore_on_load_unexpected = ("ranges_RY",)  # a former version's, of a term that left the loss

    def __init__(self, config: GraphMERConfig):
        super().__init__(config)
        D, E, R = config.hidden_size, config.embedding_size, config.num_relations
        self.encoder = GraphMERModel(config)
        self.token_bias = TokenBias(config.vocab_size)
        self.triple_head = nn.Linear(D, 1)
        self.query_head = nn.Linear(D, E, bias=False)
        self.entity_head = nn.Linear(D, E, bias=False)
        self.token_match = None
        if config.token_match:
            self.token_match = CopyHead(config.vocab_size, D, config.separator_ids, config.break_ids)
        self.triple_scorer = TripleScorer(R, E)
        antisymmetric, acyclic = torch.zeros(2, R + 1)
        antisymmetric[config.antisymmetric_relations] = 1
        acyclic[config.acyclic_relations] = 1
        # Saved with the weights: from_pretrained makes what is not saved of empty memory.
        self.register_buffer("antisymmetric_R", antisymmetric)
        self.register_buffer("acyclic_R", acyclic)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, CopyHead):
            module.reset_parameters()
        elif isinstance(module, TokenBias):
            nn.init.zeros_(module.weight)
        elif isinstance(module, TripleScorer):
            nn.init.normal_(module.weight, std=self.config.embedding_size**-0.5)
        else:
            super()._init_weights(module)

    def save_pretrained(self, *args, **kwargs):
        """As transformers does, with the code: from the folder `AutoModel` loads the encoder, `AutoModelForPreTraining` the whole."""
        self.config.auto_map = {"AutoModel": "encoder.GraphMERModel"}
        super().save_pretrained(*args, **kwargs)

    def forward(
        self,
        mlm_labels: torch.Tensor | None = None,
        mnm_labels: torch.Tensor | None = None,
        triple_labels: torch.Tensor | None = None,
        return_dict: bool | None = None,
        **fields: torch.Tensor,
    ) -> GraphMEROutput:
        """States, and with labels the weighted sum of every term whose weight is not 0.

        fields: those of `INPUTS`, as the encoder takes them, and those of `LABELS`; transformers' trainer reads in the signature
        which are labels. mlm_positions, mlm_labels [B, M] · mnm_labels [B, G, L] · triple_labels [B, G].
        tail_text_ids, head_text_ids [B, G, C], tail_entities, head_entities [B, G], negative_text_ids [B, G, U, C] (may be
        missing) and known_BGX [B, G, B G]: for the terms over entities.

        Raises ValueError: a term has a weight and its field is missing; TypeError: a field that nothing reads.
        """
        fields |= {"mlm_labels": mlm_labels, "mnm_labels": mnm_labels, "triple_labels": triple_labels}
        if unknown := fields.keys() - {*INPUTS, *LABELS}:
            raise TypeError(f"{', '.join(sorted(unknown))}: unknown; the fields are {', '.join((*INPUTS, *LABELS))}")
        inputs = {name: fields[name] for name in INPUTS}
        labels = {name: fields[name] for name in LABELS if fields.get(name) is not None}
        states = self.encoder(**inputs)
        terms = self._terms(inputs, labels, states) if labels else None
        loss = None
        if terms is not None:
            weights = self.config.weights()
            loss = sum((weights[name] * term for name, term in terms.items()), states.root_states.new_zeros(()).float())
        return GraphMEROutput(loss=loss, terms=terms, root_states=states.root_states, leaf_states=states.leaf_states)

    def token_logits(self, states: torch.Tensor) -> torch.Tensor:
        """[..., V] of states [..., D]."""
        return self.token_bias(states, self.encoder.embedding.weight)

    def leaf_logits(self, **batch: torch.Tensor) -> torch.Tensor:
        """What stands in each leaf slot [B, G, L, V]; of `batch` only the inputs are read."""
        return self.token_logits(self._states(batch).leaf_states)

    def queries(self, **batch: torch.Tensor) -> torch.Tensor:
        """Unit vectors [B, G, E] that the leaves' tails should be near to; of `batch` only the inputs are read."""
        return self._query(self._states(batch).leaf_states)

    def entities(self, text_ids: torch.Tensor) -> torch.Tensor:
        """Unit vectors [..., E] of entities' texts [..., C]."""
        return unit(self.entity_head(self.encoder.encode_text(text_ids)))

    def root_logits(self, **batch: torch.Tensor) -> torch.Tensor:
        """What stands at the masked roots [B, M, V], with `mlm_positions` beside the inputs."""
        return self.token_logits(_at(self._states(batch).root_states, batch["mlm_positions"]))

    def query_features(self, **batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of leaves: features [B, G, ...] to multiply with those of entities, tokens [B, T] that they copy, weights [B, G, T].

        Without `token_match` only the features. Numbers of tokens are those of `copy_head.FIELDS`.
        """
        states = self._states(batch)
        query_BGE = self._query(states.leaf_states) / self.config.temperature
        if self.token_match is None:
            return (query_BGE,)
        tokens = self._leaf_tokens(batch, states)
        return torch.cat((query_BGE, tokens.expected.float()), dim=-1), *self.token_match.all_copied(tokens)

    def entity_features(self, text_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of entities' texts [X, C]: features [X, ...], an addend [X], and tokens, pairs and paths with their weights, to match copies.

        Without `token_match` only features and addend.
        """
        entity_XE = self.entities(text_ids)
        if self.token_match is None:
            return entity_XE, entity_XE.new_zeros(len(entity_XE))
        names = self._name_tokens(text_ids)
        return torch.cat((entity_XE, names.mean.float()), dim=-1), names.bias_X, *self.token_match.all_of_names(names)

    def _leaf_tokens(self, batch: dict[str, torch.Tensor], states: GraphMEROutput) -> LeafTokens:
        return self.token_match.leaf_tokens(
            states.leaf_states[:, :, 0],
            states.root_states,
            batch["root_ids"],
            batch["leaf_segments"],
            batch["root_segments"],
        )

    def _name_tokens(self, text_ids: torch.Tensor) -> NameTokens:
        return self.token_match.name_tokens(text_ids, self.encoder.embedding.weight, self.config.pad_token_id)

    def _states(self, batch: dict[str, torch.Tensor]) -> GraphMEROutput:
        return self.encoder(**{name: batch[name] for name in INPUTS})

    def _query(self, leaf_states_BGLD: torch.Tensor) -> torch.Tensor:
        return unit(self.query_head(leaf_states_BGLD[:, :, 0]))

    # -- the loss --

    def _terms(self, inputs: dict, labels: dict, states: GraphMEROutput) -> dict[str, torch.Tensor]:
        wanted = [name for name, weight in self.config.weights().items() if weight]
        for name in wanted:
            if missing := [field for field in NEEDED[name] if field not in labels]:
                raise ValueError(
                    f"{', '.join(missing)}: missing, and {name}_weight needs it; give it or set the weight to 0"
                )
        terms = {}
        if "mlm" in wanted:
            logits_BMV = self.token_logits(_at(states.root_states, labels["mlm_positions"]))
            terms["mlm"] = token_loss(logits_BMV, labels["mlm_labels"])
        if "mnm" in wanted:
            terms["mnm"] = token_loss(self.token_logits(states.leaf_states), labels["mnm_labels"])
        if "triple" in wanted:
            logits_BG = self.triple_head(states.leaf_states[:, :, 0]).squeeze(-1)
            terms["triple"] = triple_loss(logits_BG, labels["triple_labels"])
        if set(wanted) & set(OVER_ENTITIES):
            terms |= self._entity_terms(wanted, inputs, labels, states)
        return terms

    def _entity_terms(self, wanted, inputs, labels, states) -> dict[str, torch.Tensor]:
        config, entities_BG, terms = self.config, labels["tail_entities"], {}
        relation_BG = inputs["relation_ids"]
        tails_BGE, negatives_BGUE, some_BGU = self.entities(labels["tail_text_ids"]), None, None
        if "negative_text_ids" in labels and {"contrastive", "scoring"} & set(wanted):
            negatives_BGUE = self.entities(labels["negative_text_ids"])
            some_BGU = (labels["negative_text_ids"] != config.pad_token_id).any(-1)
        if "contrastive" in wanted:
            masked_BG = (labels["mnm_labels"] != IGNORED).any(-1)
            queries_BGE = self._query(states.leaf_states)
            match_PP, match_BGU = self._matches(inputs, labels, states, negatives_BGUE is not None)
            against = (tails_BGE, negatives_BGUE, some_BGU, entities_BG, labels["known_BGX"])
            terms["contrastive"] = contrastive_loss(
                queries_BGE, *against, masked_BG, config.temperature, match_PP, match_BGU
            )
        if {"scoring", "antisymmetry", "acyclicity"} & set(wanted):
            terms |= self._scorer_terms(wanted, relation_BG, tails_BGE, negatives_BGUE, some_BGU, labels)
        return terms

    def _matches(self, inputs, labels, states, negatives: bool) -> tuple[torch.Tensor | float, torch.Tensor | float]:
        """What tokens add to the scores of all tails of the batch [P, P] and of each leaf's own wrong ones [B, G, U]."""
        if self.token_match is None:
            return 0.0, 0.0
        leaves = self._leaf_tokens(inputs, states)
        match_PP = self.token_match.scores(leaves, self._name_tokens(labels["tail_text_ids"].flatten(0, 1)))
        if not negatives:
            return match_PP, 0.0
        return match_PP, self.token_match.own_scores(leaves, self._name_tokens(labels["negative_text_ids"]))

    def _scorer_terms(
        self, wanted, relation_BG, tails_BGE, negatives_BGUE, some_BGU, labels
    ) -> dict[str, torch.Tensor]:
        terms, margin = {}, self.config.ontology_margin
        heads_BGE = self.entities(labels["head_text_ids"])
        true_BG = (relation_BG > 0) & (labels["tail_entities"] >= 0)
        if "triple_labels" in labels:
            true_BG = true_BG & (labels["triple_labels"] != 0)
        relation_P, true_P = relation_BG.flatten(), true_BG.flatten()
        heads_PE, tails_PE = heads_BGE.flatten(0, 1), tails_BGE.flatten(0, 1)
        head_P, tail_P = labels["head_entities"].flatten(), labels["tail_entities"].flatten()
        expected_PE = self.triple_scorer.expected_tail(heads_PE, relation_P)
        if "scoring" in wanted:
            terms["scoring"] = contrastive_loss(
                expected_PE.view_as(heads_BGE),
                tails_BGE,
                negatives_BGUE,
                some_BGU,
                labels["tail_entities"],
                labels["known_BGX"],
                true_BG,
                self.config.temperature,
            )
        if not {"antisymmetry", "acyclicity"} & set(wanted):
            return terms
        forward_P = (expected_PE * tails_PE).sum(-1)
        backward_P = self.triple_scorer(tails_PE, relation_P, heads_PE)
        apart_P = true_P & (head_P != tail_P)
        if "antisymmetry" in wanted:
            both_P = apart_P & (self.antisymmetric_R[relation_P] > 0)
            terms["antisymmetry"] = cycle_loss([forward_P, backward_P], margin, both_P)
        if "acyclicity" in wanted:
            acyclic_P = apart_P & (self.acyclic_R[relation_P] > 0)
            third_P = self._another(tail_P)
            third_PE = tails_PE.index_select(0, third_P)
            third_entity_P = tail_P.index_select(0, third_P)
            onward_P = self.triple_scorer(tails_PE, relation_P, third_PE)
            home_P = self.triple_scorer(third_PE, relation_P, heads_PE)
            three_P = acyclic_P & (third_entity_P >= 0) & (third_entity_P != tail_P) & (third_entity_P != head_P)
            terms["acyclicity"] = cycle_loss([forward_P, backward_P], margin, acyclic_P) + (
                cycle_loss([forward_P, onward_P, home_P], margin, three_P)
            )
        return terms

    def _another(self, entities_P: torch.Tensor) -> torch.Tensor:
        """For each leaf another of the batch [P], all shifted by one random number; by 1 in evaluation."""
        P, device = len(entities_P), entities_P.device
        shift = torch.randint(1, max(P, 2), (1,), device=device) if self.training else 1
        return (torch.arange(P, device=device) + shift) % P


def _at(states_BSD: torch.Tensor, place_BM: torch.Tensor) -> torch.Tensor:
    """The states at these places, [B, M, D].

    A product with zeros and ones: the gradient of a gather is a scatter, for which XLA sends the places of every chip to all,
    and whose sums come in any order on a GPU.
    """
    place_S = torch.arange(states_BSD.shape[1], device=place_BM.device)
    chosen_BMS = (place_BM[..., None] == place_S).to(states_BSD.dtype)
    with torch.autocast(states_BSD.device.type, enabled=False):
        return chosen_BMS @ states_BSD


AutoModelForPreTraining.register(GraphMERConfig, GraphMERForPreTraining, exist_ok=True)
GraphMERForPreTraining.register_for_auto_class("AutoModelForPreTraining")
