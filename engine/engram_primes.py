"""The prime numbers that the Engram hash reduces by (model.md section 6.2)."""

from __future__ import annotations

_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Miller-Rabin with these bases decides every number below 3.3e24 without error."""


def is_prime(number: int) -> bool:
    """Whether ``number`` is prime; exact for every 64-bit integer."""
    if number < 2:
        return False
    for small in _WITNESSES:
        if number % small == 0:
            return number == small
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, witness, odd, twos) for witness in _WITNESSES)


def engram_primes(
    *, num_layers: int, vocab_size: int, max_ngram_size: int, num_heads: int
) -> tuple[tuple[int, ...], ...]:
    """Return the moduli of every Engram layer, in layer order.

    Each layer has ``num_heads`` primes for n = 2, then as many for n = 3, up to ``max_ngram_size``. The
    search of each group starts again at ``vocab_size``, takes primes in ascending order, and never takes one
    that an earlier group of any layer holds.

    Args:
        num_layers: number of Engram layers.
        vocab_size: ``engram_vocab_size``, where each search starts (inclusive).
        max_ngram_size: ``engram_max_ngram_size``.
        num_heads: ``engram_n_heads``, hash heads of each n.
    """
    per_layer = (max_ngram_size - 1) * num_heads
    # Every group skips exactly the primes taken before it, so the groups are one ascending run cut in pieces.
    primes: list[int] = []
    candidate = vocab_size
    while len(primes) < num_layers * per_layer:
        if is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return tuple(tuple(primes[i * per_layer : (i + 1) * per_layer]) for i in range(num_layers))


def _passes(number: int, witness: int, odd: int, twos: int) -> bool:
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False
