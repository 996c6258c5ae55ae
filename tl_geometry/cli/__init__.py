"""The command line."""

from tl_geometry.cli.app import app, main

__all__ = ["app", "main"]
