"""Run by the Python of onnxruntime-genai's own environment: greedy tokens of an exported folder, and the logits before each.

Arguments: the folder, a JSON file with the job, and where to save the results, an npz with ``tokens`` (batch, length) and
``logits`` (steps, batch, vocab_size).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai as og


def main(folder: str, job: str, results: str) -> None:
    """Generate until ``max_length`` tokens are there or every row has ended."""
    asked = json.loads(Path(job).read_text("utf-8"))
    model = og.Model(folder)
    params = og.GeneratorParams(model)
    params.set_search_options(batch_size=len(asked["ids"]), **asked["search"])
    generator = og.Generator(model, params)
    logits = []
    for chunk in asked.get("before", []):
        generator.append_tokens(np.array(chunk, np.int32))
    generator.append_tokens(np.array(asked["ids"], np.int32))
    while not generator.is_done():
        logits.append(np.array(generator.get_logits())[:, -1])
        generator.generate_next_token()
    rows = [list(generator.get_sequence(row)) for row in range(len(asked["ids"]))]
    text = {}
    if "text" in asked:
        tokenizer = og.Tokenizer(model)
        ids = tokenizer.encode(asked["text"])
        text = {"encoded": np.array(ids, np.int64), "decoded": np.array(tokenizer.decode(ids))}
    np.savez(results, tokens=np.array(rows, np.int64), logits=np.array(logits, np.float32), **text)


if __name__ == "__main__":
    main(*sys.argv[1:])
