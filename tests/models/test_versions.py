"""Releases of TransformerLens: tested ones pass in silence, unknown ones warn once, impossible ones stop."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import warnings

import pytest

from tl_geometry.hooks.sites import attention_sites
from tl_geometry.models import versions
from tl_geometry.models.backends import model_class


@pytest.fixture
def installed(monkeypatch):
    """A function that pretends that another release is installed."""

    def pretend(number: str | None) -> None:
        def version(name: str) -> str:
            assert name == "transformer-lens"
            if number is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return number

        monkeypatch.setattr(versions, "version", version)
        versions.check_transformer_lens.cache_clear()

    yield pretend
    monkeypatch.undo()
    versions.check_transformer_lens.cache_clear()


@pytest.mark.parametrize("number", ["2.18.0", "3.9.0", "3.9.4", "4.3.0rc1", None])
def test_known_releases_and_none_pass_in_silence(number, installed):
    installed(number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check_transformer_lens()


@pytest.mark.parametrize(
    "number", ["2.16.0", "2.17.0", "3.12.0", "4.9.1", "4.10.0.dev3", "0.0.0", "main"]
)
def test_an_unknown_minor_version_warns_once(number, installed):
    installed(number)
    with pytest.warns(UserWarning, match=rf"{number} was never tested .* only 2\.18, 3\.9, 4\.3"):
        versions.check_transformer_lens()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check_transformer_lens()


@pytest.mark.parametrize("number", ["2.15.4", "1.19.0", "0.4.2", "5.0.0", "5.0.0rc1", "12.0"])
def test_what_cannot_work_is_refused_each_time(number, installed):
    installed(number)
    for _ in range(2):
        with pytest.raises(ImportError, match=rf"TransformerLens {number}: .*>=2.16,<5"):
            versions.check_transformer_lens()


def test_models_and_hooks_look_at_it(installed, tiny_model):
    installed("5.1.0")
    for look in (lambda: model_class("bridge"), lambda: attention_sites(tiny_model)):
        with pytest.raises(ImportError, match=r"does not work with TransformerLens 5\.1\.0"):
            look()
    installed("3.10.0")
    with pytest.warns(UserWarning, match=r"TransformerLens 3\.10\.0 was never tested"):
        attention_sites(tiny_model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention_sites(tiny_model)


def test_the_installed_release_is_a_tested_one(installed):
    minor = ".".join(importlib.metadata.version("transformer-lens").split(".")[:2])
    assert minor in versions.TESTED


def test_importing_the_package_does_not_look():
    code = """
import importlib.metadata
found = importlib.metadata.version
importlib.metadata.version = lambda name: "5.0.0" if name == "transformer-lens" else found(name)
import tl_geometry, torch
tl_geometry.sink_rate(torch.ones(1, 1, 2, 2).tril())
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
