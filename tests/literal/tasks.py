"""The synthetic tasks, one token at a time, from the texts and the rules alone."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

BOS = 0


class LiteralBackcopy:
    """Bigram-Backcopy counted and drawn with dictionaries of characters."""

    def __init__(self, texts):
        self.seen = seen = Counter(character for text in texts for character in text)
        self.alphabet = sorted(sorted(seen), key=seen.__getitem__, reverse=True)[:64]
        self.triggers = [c for c in self.alphabet if c.isalpha()][:3]
        self.start = {c: seen[c] for c in self.alphabet if c not in self.triggers}
        self.follow = {c: Counter() for c in self.alphabet}
        for text in texts:
            for here, following in pairwise(text):
                if here in self.follow and following in self.follow:
                    self.follow[here][following] += 1

    def counts(self):
        """The table of pairs as lists, row 0 the frequencies of all characters."""
        frequencies = [0, *(self.seen[c] for c in self.alphabet)]
        rows = [[0, *(self.follow[a][b] for b in self.alphabet)] for a in self.alphabet]
        return [frequencies, *rows]

    def next_distribution(self, row):
        """Probability of each id after a whole row of ids, bos first."""
        probabilities = [0.0] * 65
        last = row[-1]
        if last != BOS and self.alphabet[last - 1] in self.triggers:
            probabilities[row[-2]] = 1.0
            return probabilities
        weights = self.start if last == BOS else self.follow[self.alphabet[last - 1]]
        for character, weight in weights.items():
            probabilities[1 + self.alphabet.index(character)] = weight / sum(weights.values())
        return probabilities

    def sample(self, length, source: random.Random):
        """One row of ids, drawn as the rule reads."""
        row = [BOS]
        while len(row) < length:
            probabilities = self.next_distribution(row)
            row.append(source.choices(range(65), probabilities)[0])
        return row


def copy_paste_target(row, kind, contents):
    """Per position the distribution of the label, None at bos."""
    found = [None]
    for position in range(1, len(row)):
        flag, content = divmod(row[position] - 1, contents)
        probabilities = [0.0] * contents
        if flag:
            probabilities[(row[position - 1] - 1) % contents] = 1.0
        elif kind == "soft":
            probabilities[content] = 1.0
        else:
            probabilities = [1 / contents] * contents
        found.append(probabilities)
    return found
