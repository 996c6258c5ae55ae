"""Benchmarks: ratios of whole runs on the real model, measured side by side."""
