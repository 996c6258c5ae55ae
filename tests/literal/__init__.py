"""Slow, literal reference implementations: the definitions, written as loops over float64 numpy."""
