"""Similarity of tokens, pair by pair."""

from __future__ import annotations

import itertools
import math

import numpy as np

from .masks import to_array


def tokens(x, mask=None, skip_first=True):
    """The real tokens of each document, bos apart."""
    x = to_array(x)
    mask = np.ones(x.shape[:2], dtype=bool) if mask is None else to_array(mask)
    return [
        [v for v, real in zip(rows, keep, strict=True) if real][int(skip_first) :]
        for rows, keep in zip(x, mask, strict=True)
    ]


def cosine(x, y):
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def token_similarity(x, mask=None, *, skip_first=True):
    found = []
    for document in tokens(x, mask, skip_first):
        pairs = itertools.combinations([v for v in document if np.linalg.norm(v) > 0], 2)
        cosines = [cosine(a, b) for a, b in pairs]
        found.append(sum(cosines) / len(cosines) if cosines else math.nan)
    return np.array(found)


def relative_residual(x, mask=None, *, skip_first=True):
    found = []
    for document in tokens(x, mask, skip_first):
        whole = sum(v @ v for v in document)
        if not whole > 0:
            found.append(math.nan)
            continue
        mean = sum(document) / len(document)
        found.append(math.sqrt(sum((v - mean) @ (v - mean) for v in document) / whole))
    return np.array(found)


def first_token_cosines(x, mask=None):
    mean, largest = [], []
    for first, *others in tokens(x, mask, skip_first=False):
        pointing = [v for v in others if np.linalg.norm(v) > 0 and np.linalg.norm(first) > 0]
        cosines = [cosine(first, v) for v in pointing]
        mean.append(sum(cosines) / len(cosines) if cosines else math.nan)
        largest.append(max(cosines, default=math.nan))
    return np.array(mean), np.array(largest)
