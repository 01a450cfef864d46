"""Drafting from anchors to tokens, and keeping contexts, each as one job of compiled code.

At batch 1 a block is two rows, and a hand-over between Python and compiled code costs as much as a third of a
layer of it. Nothing here computes: the kernels of ``draft_rows``, ``window_layers`` and ``draft_decode`` are
called one after the other. Layers, pools and the head are tables of numbers (``bound_layer``), so that there
is little to hand over, and a layer is compiled once for all of them. A job is one line of numbers, for it may
run on a helper (``job_threads``) that never sees the interpreter.

Legend: A blocks of B rows, L layers, D model width, W window, C latent width, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from deepinfer.kernels.cpu.addresses import floats, integers, octets
from deepinfer.kernels.cpu.bound_layer import LAYER_NUMBERS, float_at, floats_at, place_at
from deepinfer.kernels.cpu.compiled import inlined, job
from deepinfer.kernels.cpu.draft_chains import markov_kernel, rows_kernel
from deepinfer.kernels.cpu.experts import ROWS_PER_TASK
from deepinfer.kernels.cpu.hyper import collapse_kernel
from deepinfer.kernels.cpu.linear import Place, linear_kernel
from deepinfer.kernels.cpu.norms import rms_norm_kernel
from deepinfer.kernels.cpu.pointwise import sigmoid_kernel
from deepinfer.kernels.cpu.record_kernels import Place as Pool
from deepinfer.kernels.cpu.record_kernels import load_place, store_place
from deepinfer.kernels.cpu.window_layer import contexts_kernel, window_layer

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Table = tuple[Float32, Float32]
"""Cosines and sines of all positions."""
Anchors = tuple[Int64, Int64, Int64, Int64]
"""Golden tokens, positions, slots and first contexts, each [A]."""
Found = tuple[Float32, Float32, Int64, Float32, Float32, Float32]
"""Hidden states [A, B, D], base logits, tokens [A, 1 + B], logits, scores and confidences."""
Head = tuple[Float32, np.float32, Place, Float32, Place, Place]
"""Gain and eps of the norm; head; embedding and head of the Markov term; confidence."""
DRAFT_NUMBERS, KEEP_NUMBERS = 31, 24
"""Of a job's line, without the addresses of pools behind them."""
_POOL_NUMBERS, _BYTES = 11, 8


@inlined
def _pool_at(address: int) -> Pool:
    """The pool whose ``BoundRecords.line`` is there."""
    line = carray(integers(address), (_POOL_NUMBERS,))
    layout = carray(integers(line[4]), (line[5],))
    codes, factors = (carray(octets(line[0]), (line[1],)), carray(octets(line[2]), (line[3],)))
    return codes, factors, layout, floats_at(line, 6), line[8], line[9], line[10]


@inlined
def _head_at(line: Int64) -> Head:
    embed = carray(floats(line[8]), (line[9], line[10]))
    return (
        floats_at(line, 0),
        float_at(line, 2),
        place_at(line, 3),
        embed,
        place_at(line, 11),
        place_at(line, 16),
    )


@inlined
def _decode(
    streams: Float32, pre: Float32, head: Head, bf16: bool, found: Found, low: int, high: int
) -> None:
    """From streams of blocks ``low .. high`` to their tokens."""
    gain, eps, place, embed, markov, confidence = head
    hidden, base, tokens, logits, scores, confidences = found
    num_rows, width, vocabulary = streams.shape[0], hidden.shape[2], base.shape[2]
    states = hidden[low:high].reshape(num_rows, width)
    normed = np.empty_like(states)
    collapse_kernel(streams, pre, states, bf16, 0, num_rows)
    rms_norm_kernel(states, gain, eps, normed, bf16, 0, num_rows)
    products = base[low:high].reshape(num_rows, vocabulary)
    linear_kernel(normed, place, products, vocabulary, False, 0, num_rows)
    markov_kernel(
        base[low:high], hidden[low:high], embed, markov, confidence,
        tokens[low:high], logits[low:high], scores[low:high],
    )  # fmt: skip
    sigmoid_kernel(scores[low:high].reshape(-1), confidences[low:high].reshape(-1), 0, num_rows)


@inlined
def _table_at(line: Int64, i: int) -> Table:
    """Addresses of cosines and sines, and the shape of each."""
    shape = line[i + 2], line[i + 3]
    return carray(floats(line[i]), shape), carray(floats(line[i + 1]), shape)


@inlined
def _rows_at(line: Int64, i: int, width: int) -> Int64:
    """A table of ``width`` columns, its address and rows."""
    return carray(integers(line[i]), (line[i + 1], width))


@inlined
def _anchors_at(line: Int64, i: int) -> Anchors:
    count = (line[i],)
    golden, positions = carray(integers(line[i + 1]), count), carray(integers(line[i + 2]), count)
    return golden, positions, carray(integers(line[i + 3]), count), carray(integers(line[i + 4]), count)


@inlined
def _found_at(line: Int64, i: int, count: int) -> Found:
    size, width, vocabulary = line[i], line[i + 1], line[i + 2]
    wide, narrow = (count, size, vocabulary), (count, size)
    return (
        carray(floats(line[i + 3]), (count, size, width)), carray(floats(line[i + 4]), wide),
        carray(integers(line[i + 5]), (count, 1 + size)), carray(floats(line[i + 6]), wide),
        carray(floats(line[i + 7]), narrow), carray(floats(line[i + 8]), narrow),
    )  # fmt: skip


@inlined
def _draft(address: int, low: int, high: int) -> int:
    """As many blocks at once as experts take rows go through everything."""
    line = carray(integers(address), (DRAFT_NUMBERS,))
    anchors, noise, ring, window, num_streams = _anchors_at(line, 0), line[5], line[6], line[7], line[8]
    embedding = carray(floats(line[9]), (line[10], line[11]))
    (cos, sin), layers = _table_at(line, 12), _rows_at(line, 16, LAYER_NUMBERS)
    head = carray(integers(line[18]), (line[19],))
    rounds, bf16, found = line[20] != 0, line[21] != 0, _found_at(line, 22, line[0])
    pools = carray(integers(address + _BYTES * DRAFT_NUMBERS), (len(layers),))
    golden, positions, slots, lows = anchors
    size, width = found[0].shape[1], embedding.shape[1]
    found[2][low:high, 0] = golden[low:high]
    step, num_outside = ROWS_PER_TASK // size, 0
    for first in range(low, high, step):
        last = min(first + step, high)
        blocks, num_rows = last - first, (last - first) * size
        streams = np.empty((num_rows, num_streams, width), np.float32)
        pre, at = np.empty((num_rows, num_streams), np.float32), np.empty(num_rows, np.int64)
        records, places = np.empty(blocks * window, np.int64), np.empty((num_rows, window), np.int64)
        own = np.empty((num_rows, size), np.int64)
        rows_kernel(
            golden[first:last], positions[first:last], slots[first:last], lows[first:last],
            embedding, noise, ring, streams, pre, at, records, places, own,
        )  # fmt: skip
        for number in range(len(layers)):
            context, outside = load_place(_pool_at(pools[number]), records)
            num_outside += outside
            out, next_pre = np.empty_like(streams), np.empty_like(pre)
            table = (cos, sin, at)
            window_layer(
                streams, pre, layers[number], table, context, places, own, rounds, bf16, out, next_pre
            )
            streams, pre = out, next_pre
        _decode(streams, pre, _head_at(head), bf16, found, first, last)
    return num_outside


@job
def draft_job(address: int, low: int, high: int) -> int:
    """Blocks ``low .. high`` from anchors to tokens; how many context records do not exist.

    The line behind ``address``: A, addresses of the anchors; noise token, positions of a ring, W, streams;
    embedding; table of rotations; layers; head; whether caches round, whether bf16; B, D, V, and addresses of
    what is found; those of the pools' lines.
    """
    try:
        return _draft(address, low, high)
    except Exception:
        return -1


@inlined
def _keep(address: int, low: int, high: int) -> int:
    line = carray(integers(address), (KEEP_NUMBERS,))
    num_rows, width, step = line[1], line[2], line[23]
    first, last = low * step, min(high * step, num_rows)
    features = carray(floats(line[0]), (num_rows, width))
    cos, sin = _table_at(line, 11)
    positions, records = carray(integers(line[15]), (num_rows,)), carray(integers(line[16]), (num_rows,))
    layers = _rows_at(line, 17, LAYER_NUMBERS)
    out = carray(floats(line[19]), (len(layers), num_rows, line[20]))
    rounds, bf16 = line[21] != 0, line[22] != 0
    pools = carray(integers(address + _BYTES * KEEP_NUMBERS), (len(layers),))
    projection, gain, eps = place_at(line, 3), floats_at(line, 8), float_at(line, 10)
    table = (cos, sin, positions)
    contexts_kernel(features, projection, gain, eps, layers, table, rounds, bf16, out, first, last)
    num_outside = 0
    for number in range(len(pools)):
        num_outside += store_place(_pool_at(pools[number]), out[number], records, first, last)
    return num_outside


@job
def keep_job(address: int, low: int, high: int) -> int:
    """Contexts of a part of T rows, stored; how many records do not exist.

    The line behind ``address``: features; projection, gain and eps; table of rotations; positions, records;
    layers; room for latents [L, T, C], and C; whether caches round, whether bf16; rows of an item; addresses
    of the pools' lines.
    """
    try:
        return _keep(address, low, high)
    except Exception:
        return -1
