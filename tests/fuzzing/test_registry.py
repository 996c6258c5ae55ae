"""No public function without random inputs."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import tl_geometry as tlg
from fuzzing.longer import has_failed
from fuzzing.registry import ACCUMULATORS, EVALUATIONS, REGISTRY


def test_no_public_name_is_missing():
    public = {name for name in tlg.__all__ if not isinstance(getattr(tlg, name), ModuleType)}
    assert set(REGISTRY) == public


def test_every_file_is_there():
    for name, file in REGISTRY.items():
        text = (Path(__file__).parent / file).read_text()
        used = {"test_measures.py": "MEASURES", "test_ablations.py": "ABLATIONS"}.get(file, name)
        used = "ACCUMULATORS" if name in ACCUMULATORS else used
        used = "EVALUATIONS" if name in EVALUATIONS else used
        assert used in text, (name, file)


def test_a_failure_that_pytest_had_no_time_to_tell_of_is_one():
    assert has_failed("..F\n")
    assert has_failed("........ [ 50%]\n.E.")
    assert not has_failed("..s.x.. [ 50%]\n....\nError: none of pytest's progress")
