"""Drives an engine core for callers that hand over requests and want tokens back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from deepinfer.engine.api import Completion, GenerateRequest, RequestFailure, TokenRecord
from deepinfer.engine.core import EngineCore


def stream(core: EngineCore, requests: Sequence[GenerateRequest]) -> Iterator[TokenRecord | RequestFailure]:
    """Queue all requests and yield failures at once, then every token as it is sampled.

    If the caller stops listening, what is unfinished is aborted.
    """
    added = []
    try:
        for request in requests:
            failure = core.add(request)
            if failure is not None:
                yield failure
            else:
                added.append(request.request_id)
        while core.has_unfinished:
            yield from core.step()
    finally:
        for request_id in added:
            core.abort(request_id)


def collect(
    core: EngineCore, requests: Sequence[GenerateRequest]
) -> list[tuple[Completion, ...] | RequestFailure]:
    """All samples of every request, in the order of the requests; a bad one yields a failure in its place."""
    records: dict[tuple[str, int], list[TokenRecord]] = defaultdict(list)
    failures: list[RequestFailure] = []
    for record in stream(core, requests):
        if isinstance(record, RequestFailure):
            failures.append(record)
        else:
            records[record.request_id, record.sample_index].append(record)
    refused = {failure.request_id: failure for failure in reversed(failures)}
    results: list[tuple[Completion, ...] | RequestFailure] = []
    for request in requests:
        keys = [(request.request_id, index) for index in range(request.params.n)]
        if request.request_id in refused and keys[0] not in records:
            results.append(refused[request.request_id])
        else:
            results.append(
                tuple(
                    Completion(request_id=name, sample_index=index, records=tuple(records[name, index]))
                    for name, index in keys
                )
            )
    return results
