"""The packages of jaxpipe import one another in one direction only."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent

PURE = {"numpy", "jaxtyping"}
ARRAYS = PURE | {"jax"}
MODELS = ARRAYS | {"flax", "optax"}

# Layer -> the layers below it that it may import, and the packages from outside.
LAYERS: dict[str, tuple[set[str], set[str]]] = {
    "schedule": (set(), PURE),
    "lower": ({"schedule"}, PURE),
    "draw": ({"schedule", "lower"}, PURE | {"matplotlib"}),
    "plan": ({"schedule", "lower"}, PURE | {"scipy"}),
    "runtime": ({"schedule", "lower", "plan"}, ARRAYS),
    "nn": ({"schedule", "lower", "plan", "draw", "runtime"}, MODELS),
    "aot": ({"schedule", "lower", "plan", "draw", "runtime", "nn"}, ARRAYS),
    "elastic": ({"schedule", "lower", "plan", "draw", "runtime"}, MODELS),
}
# Modules beside the packages sit above all of them.
ABOVE = (set(LAYERS) | {"checkpoint", "cli"}, MODELS | {"scipy", "matplotlib", "orbax"})

MODULES = sorted((ROOT / "jaxpipe").rglob("*.py"))


def imported_modules(path: pathlib.Path, root: pathlib.Path) -> set[str]:
    """Full names of the modules that a file imports anywhere, also inside functions."""
    package = path.relative_to(root).parts[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=module, level=0) if module is not None:
                # `from jaxpipe import schedule` imports a module as well.
                names |= {f"{module}.{alias.name}" for alias in node.names}
            case ast.ImportFrom(module=module, level=level):
                base = ".".join(package[: len(package) - level + 1])
                base = f"{base}.{module}" if module else base
                names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def violations(path: pathlib.Path, root: pathlib.Path = ROOT) -> list[str]:
    """The imports of a file of jaxpipe that point upwards, or outside what its layer may use."""
    layer = path.relative_to(root / "jaxpipe").with_suffix("").parts[0]
    layers, packages = LAYERS.get(layer, ABOVE)
    found = []
    for name in sorted(imported_modules(path, root)):
        top, *rest = name.split(".")
        if top == "jaxpipe":
            # The front page (`from jaxpipe import Pipeline`) is for users, not for the layers.
            below = rest[0] if rest else ""
            if below not in layers | {layer}:
                found.append(f"{path.relative_to(root)}: a module of {layer!r} imports {name}")
        elif top not in packages | set(sys.stdlib_module_names):
            found.append(f"{path.relative_to(root)}: a module of {layer!r} imports {name}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    assert violations(path) == []


def test_every_package_of_jaxpipe_is_a_known_layer():
    packages = {path.parent.name for path in (ROOT / "jaxpipe").glob("*/*.py")}
    assert packages <= set(LAYERS)


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("schedule", "import jax"),
        ("schedule", "from jaxpipe.lower import lower"),
        ("lower", "import jax.numpy as jnp"),
        ("plan", "from jaxpipe import runtime"),
        ("draw", "from jaxpipe.plan import memory"),
        ("runtime", "from flax import nnx"),
        ("runtime", "from ..nn import pipeline"),
        ("nn", "import models.gpt"),
        ("nn", "from train import config"),
        ("nn", "from jaxpipe import Pipeline"),
    ],
    ids=lambda value: value.replace(" ", "-"),
)
def test_an_import_that_points_upwards_is_found(tmp_path, layer, line):
    path = tmp_path / "jaxpipe" / layer / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"def f():\n    {line}\n", encoding="utf-8")
    assert len(violations(path, tmp_path)) == 1
