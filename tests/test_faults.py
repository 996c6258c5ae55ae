"""The list of deliberate faults fits the code, names tests that exist, and is the one in CONTRIBUTING.md."""

from __future__ import annotations

import ast

import pytest
from faults import BEGIN, END, GUIDE, ROOT, read_faults, table

FAULTS = read_faults()


def test_there_are_many_and_all_different():
    assert len(FAULTS) >= 20
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_injected_and_its_test_exists(fault, tmp_path):
    place = tmp_path / fault.file
    place.parent.mkdir(parents=True)
    place.write_text((ROOT / "tl_geometry" / fault.file).read_text())
    fault.inject(tmp_path)
    ast.parse(place.read_text())
    path, _, name = fault.test.partition("::")
    defined = [
        node.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    assert set(name.partition("[")[0].split("::")) <= set(defined)


def test_a_fault_that_no_longer_fits_is_an_error(tmp_path):
    place = tmp_path / FAULTS[0].file
    place.parent.mkdir(parents=True)
    place.write_text("nothing of it")
    with pytest.raises(ValueError, match="holds the code 0 times"):
        FAULTS[0].inject(tmp_path)


def test_contributors_read_the_same_list():
    shown = GUIDE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown == table(FAULTS)
