"""A whole request of the bundled model on kernel set ``ascend`` in the exact interpreter, against the CPU.

Prints JSON: ``same`` (bytes of everything that comes back), ``tokens``, ``needs`` (what of the operations and
types at the model's shapes Ascend lacks), ``largest_grid``.
"""

from __future__ import annotations

import json
import warnings

import numpy as np
from interpreted_ascend import Watch  # makes the interpreter exact, so it comes first

from deepinfer.engine.api import EngineConfig, GenerateRequest, RequestFailure, SamplingParams
from deepinfer.engine.llm import LLM

PROMPT = (17, 2301, 640)


def answered(backend: str) -> tuple[tuple[int, ...], bytes]:
    """Tokens, and the bytes of every log-probability of prompt and answer."""
    params = SamplingParams(
        temperature=0.8,
        top_p=0.9,
        top_k=200,
        min_p=1e-4,
        seed=5,
        max_tokens=2,
        num_logprobs=3,
        ignore_eos=True,
    )
    request = GenerateRequest(request_id="x", token_ids=PROMPT, params=params, prompt_logprobs=True)
    (found,) = LLM(None, EngineConfig(num_threads=1, backend=backend)).generate([request])
    if isinstance(found, RequestFailure):
        raise RuntimeError(found.reason)
    numbers, (only,) = b"", found
    for record in only.records:
        own = (record.raw_logprob, record.processed_logprob, *record.top_logprobs, *record.top_ids)
        numbers += np.array(own, np.float64).tobytes()
        if record.prompt is not None:
            numbers += record.prompt.logprobs.tobytes() + record.prompt.ranks.tobytes()
    return only.token_ids, numbers


def main() -> None:
    """The CPU first; only the other kernel set is watched."""
    warnings.simplefilter("ignore", RuntimeWarning)  # numpy's own, about infinities
    wanted = answered("cpu")
    watch = Watch()
    watch.grids()
    watch.operations()
    found = answered("ascend")
    facts = {"tokens": found[0], "num_bytes": len(found[1]), "largest_grid": watch.largest_grid}
    print(json.dumps(facts | {"same": found == wanted, "needs": sorted(watch.needs)}))


if __name__ == "__main__":
    main()
