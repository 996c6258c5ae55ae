import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tl_geometry

ROOT = Path(__file__).parents[1]
LINES = ("2.18.0", "3.9.0", "4.3.0")


def pins(line):
    """Name and version of every pin of one line."""
    found = {}
    for text in (ROOT / "constraints" / f"tl-{line}.txt").read_text().splitlines():
        if text and not text.startswith("#"):
            name, version = text.split("==")
            found[re.sub(r"[-_.]+", "-", name).lower()] = version
    return found


def installed():
    try:
        return importlib.metadata.distribution("tl-geometry")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("tl-geometry is not installed, only on the path")


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+", tl_geometry.__version__)
    assert installed().version == tl_geometry.__version__


def test_the_changelog_knows_the_version():
    assert f"## [{tl_geometry.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_console_script():
    (script,) = (e for e in installed().entry_points if e.group == "console_scripts")
    assert (script.name, script.value) == ("tl-geometry", "tl_geometry.cli:main")


def test_package_data_is_there():
    package = Path(tl_geometry.__file__).parent
    assert (package / "py.typed").is_file()
    assert list((package / "views" / "templates").glob("*.html.j2"))
    assert list((package / "data" / "prose").glob("*.txt"))


def test_the_wheel_holds_the_package_and_its_data(tmp_path):
    hatchling = pytest.importorskip("hatchling.build")
    del hatchling
    code = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = set(zipfile.ZipFile(tmp_path / done.stdout.split()[-1]).namelist())
    package = ROOT / "tl_geometry"
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    assert not any(name.startswith("tests") for name in names)


@pytest.mark.parametrize("line", LINES)
def test_pins_are_exact_and_portable(line):
    found = pins(line)
    assert found["transformer-lens"] == line
    assert found["torch"] == "2.13.0"
    for name, version in found.items():
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}=={version}"


@pytest.mark.parametrize("line", LINES)
def test_pins_hold_back_what_is_known_to_break(line):
    """transformers 5.24 breaks cached generation; TransformerLens 2.18 needs an older pyarrow."""
    found = pins(line)
    major, minor = map(int, found["transformers"].split(".")[:2])
    assert (major, minor) < (5, 24)
    if line == "2.18.0":
        assert (major, minor) == (4, 57)
        assert 21 <= int(found["pyarrow"].split(".")[0]) < 26


def requirements():
    """The package's own requirements by name, as its metadata has them."""
    found = [Requirement(text) for text in installed().requires or ()]
    return {r.name: r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})}


def test_the_bound_takes_tested_releases_of_transformerlens_and_no_later_line():
    allowed = requirements()["transformer-lens"].specifier
    for line in (*LINES, "2.16.0", "3.12.0", "4.9.0"):
        assert line in allowed
    for line in ("2.15.4", "5.0.0", "5.1.2", "6.0.0"):
        assert line not in allowed
    assert not allowed.contains("5.0.0rc1", prereleases=True)


def test_a_resolver_refuses_transformerlens_5(tmp_path):
    """With an index of its own, where TransformerLens 5.0.0 is all there is."""
    name = "transformer_lens-5.0.0-py3-none-any.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        info = "transformer_lens-5.0.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: transformer-lens\nVersion: 5.0.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--dry-run", "--ignore-installed"]
    pip += ["--no-index", "--no-deps", "--find-links", str(tmp_path)]

    def resolve(requirement):
        return subprocess.run([*pip, requirement], capture_output=True, text=True, check=False)

    good = resolve("transformer-lens")
    assert "Would install transformer-lens-5.0.0" in good.stdout, good.stderr
    refused = resolve(str(requirements()["transformer-lens"]))
    assert refused.returncode != 0
    assert "No matching distribution found for transformer-lens" in refused.stderr


def test_make_without_a_target_explains_itself():
    done = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("demo", "test", "lint", "bench", "clean", "TL=4.3.0"):
        assert target in done.stdout


def test_make_refuses_a_line_without_pins():
    done = subprocess.run(
        ["make", "-s", "TL=1.0.0", "env"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no pins for TL=1.0.0" in done.stdout + done.stderr
    assert not (ROOT / ".venv-1.0.0").exists()
