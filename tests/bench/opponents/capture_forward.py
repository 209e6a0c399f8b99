"""Opponent of capture: transformers' forward of the body (no lm_head, no cache) over the same sequences."""

from __future__ import annotations

import torch
from transformers import AutoModel

from protocol import common_arguments, load_ids, serve


def main() -> None:
    options = common_arguments(__doc__).parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = AutoModel.from_pretrained(options.model, dtype=getattr(torch, options.dtype), attn_implementation="sdpa").eval()
    ids = load_ids(options, model.config.vocab_size)

    @torch.inference_mode()
    def repeat() -> None:
        for batch in ids.split(options.micro_batch):
            model(batch, use_cache=False)

    serve(repeat, {"tokens": ids.numel(), "threads": torch.get_num_threads()})


if __name__ == "__main__":
    main()
