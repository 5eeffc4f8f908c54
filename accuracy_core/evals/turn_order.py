"""The order in which deviated samples are taken: tasks take turns, worst first within each, ties drawn reproducibly."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np


def turn_order(tasks: Sequence[str], doc_ids: np.ndarray, badness: np.ndarray, seed: int = 0) -> np.ndarray:
    """Indices into three equally long sequences (n,), as a permutation (n,) int64.

    Tasks take turns in the order of their names' first appearance. Within a task: largest `badness` first, then a
    checksum of seed, task and document, so that no task's first documents are preferred.
    """
    n = len(doc_ids)
    if n == 0:
        return np.zeros(0, np.int64)
    codes = {name: code for code, name in enumerate(dict.fromkeys(tasks))}
    task = np.fromiter((codes[name] for name in tasks), np.int64, n)
    return coded_turn_order(list(codes), task, doc_ids, badness, seed)


def coded_turn_order(
    names: Sequence[str], task: np.ndarray, doc_ids: np.ndarray, badness: np.ndarray, seed: int
) -> np.ndarray:
    """As `turn_order`, with `task` (n,) as indices into `names`."""
    salts = np.array([zlib.crc32(f"{seed}\0{name}".encode()) for name in names], np.uint64)
    docs = np.asarray(doc_ids, np.int64)
    within = np.lexsort((docs, _mixed(docs.astype(np.uint64) ^ (salts[task] << np.uint64(32))), -badness, task))
    sizes = np.bincount(task, minlength=len(names))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    turn = np.empty(len(docs), np.int64)
    turn[within] = np.arange(len(docs)) - starts[task[within]]
    return np.lexsort((task, turn))


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014, OOPSLA): spreads consecutive numbers over 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
