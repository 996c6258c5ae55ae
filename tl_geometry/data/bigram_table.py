"""The table of character pairs behind Bigram-Backcopy, and the command that counts it anew.

``python -m tl_geometry.data.bigram_table`` writes ``bigram_counts.json`` from the texts of
"demo-prose". The file ships with the package, so the task is the same for every seed.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from tl_geometry.data.corpora import demo_corpora

__all__ = ["BigramTable", "count_bigrams", "load_bigram_table"]

N_CHARACTERS = 64
N_TRIGGERS = 3
BOS = "<bos>"
_FILE = "bigram_counts.json"


@dataclass(frozen=True)
class BigramTable:
    """Counts of character pairs, with the character of each token id.

    Example: ``load_bigram_table().labels[:3]`` is ``('<bos>', ' ', 'e')``.

    ``counts[a, b]`` says how often b follows a; row 0 (bos) holds how often each character occurs
    at all, column 0 is empty. ``triggers`` are token ids.
    """

    labels: tuple[str, ...]
    triggers: tuple[int, ...]
    counts: Int64[Tensor, "vocab vocab"]


def count_bigrams(texts: Iterable[str]) -> BigramTable:
    """Count the pairs of neighbouring characters in texts.

    Example: ``count_bigrams(demo_corpora()["demo-prose"])``

    The vocabulary is bos (id 0) and the 64 most frequent characters, most frequent first; equally
    frequent ones stand in the order of their code points. The triggers are the three most frequent
    letters. A pair with a character outside the vocabulary, or across two texts, is not counted.

    Raises ValueError for texts with fewer than 64 characters, or with one that nothing follows.
    """
    whole = list(texts)
    occurrences = Counter(character for text in whole for character in text)
    ordered = sorted(occurrences, key=lambda character: (-occurrences[character], character))
    characters = ordered[:N_CHARACTERS]
    if len(characters) < N_CHARACTERS:
        raise ValueError(
            f"texts: {len(characters)} different characters, {N_CHARACTERS} are needed; "
            "pass more or longer texts"
        )
    labels = (BOS, *characters)
    ids = {character: token for token, character in enumerate(labels)}
    counts = torch.zeros(len(labels), len(labels), dtype=torch.int64)
    for character in characters:
        counts[0, ids[character]] = occurrences[character]
    pairs = Counter(pair for text in whole for pair in pairwise(text))
    for (first, second), count in pairs.items():
        if first in ids and second in ids:
            counts[ids[first], ids[second]] = count
    if (counts.sum(1) == 0).any():
        ends = [labels[token] for token in (counts.sum(1) == 0).nonzero()[:, 0].tolist()]
        raise ValueError(f"texts: nothing follows {ends}; pass more or longer texts")
    letters = [token for token, label in enumerate(labels) if token and label.isalpha()]
    return BigramTable(labels, tuple(letters[:N_TRIGGERS]), counts)


def load_bigram_table() -> BigramTable:
    """Read the table that ships with the package.

    Example: ``load_bigram_table().counts.shape`` is ``(65, 65)``.
    """
    text = (resources.files("tl_geometry.data") / _FILE).read_text(encoding="utf-8")
    stored = json.loads(text)
    return BigramTable(
        tuple(stored["labels"]),
        tuple(stored["triggers"]),
        torch.tensor(stored["counts"], dtype=torch.int64),
    )


def table_as_json(table: BigramTable) -> str:
    """The text of the file: one row of counts a line."""
    rows = ",\n".join(json.dumps(row) for row in table.counts.tolist())
    labels, triggers = json.dumps(table.labels), json.dumps(table.triggers)
    return f'{{\n"labels": {labels},\n"triggers": {triggers},\n"counts": [\n{rows}\n]\n}}\n'


def main() -> None:
    """Write the file anew."""
    path = Path(__file__).parent / _FILE
    path.write_text(table_as_json(count_bigrams(demo_corpora()["demo-prose"])), encoding="utf-8")
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
