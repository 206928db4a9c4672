#!/usr/bin/env bash
# Exactly what CI runs: lint, types, the tests, and a short second leg on a newer Python with the newest jax.
# Anyone can run it: `make check`. PYTHON, as for make, chooses the Python of the first leg.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

heading() { printf '\n== %s\n' "$*"; }

heading "lint and types"
make --no-print-directory lint

# XLA's GPU compiler, without CUDA and without a GPU: the tests that compile for an H100 need it, in the
# version of jax. It stays out of .venv, where jax would look for CUDA whenever it starts.
heading "the H100 compiler"
make --no-print-directory .venv/.installed-test
version=$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("jaxlib"))')
compiler=$PWD/.cache/h100-compiler-$version
if [ ! -e "$compiler/.installed" ]; then
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
        --target "$compiler" "jax-cuda13-plugin==$version" "jax-cuda13-pjrt==$version"
    touch "$compiler/.installed"
fi
echo "jax-cuda13-plugin $version"

heading "tests"
PYTHONPATH=$compiler make --no-print-directory test

# A second leg on Python 3.13 or 3.12 with the newest jax. A name on PATH may be a shim that does not start.
newest=""
for version in 3.13 3.12; do
    candidates=("python$version")
    if root=$(pyenv root 2>/dev/null); then
        candidates+=("$root"/versions/"$version".*/bin/python)
    fi
    for candidate in "${candidates[@]}"; do
        if [ -z "$newest" ] && "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            newest=$candidate
        fi
    done
done

if [ -z "$newest" ]; then
    heading "SKIPPED: THE SECOND LEG. No Python 3.12 or 3.13 that starts was found (on PATH or under pyenv),"
    echo "   so nothing here has run on the newest jax."
    exit 0
fi
heading "second leg: $("$newest" --version) and the newest jax"
make --no-print-directory PYTHON="$newest" VENV=.venv-newest .venv-newest/.installed-test
.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade jax flax optax
.venv-newest/bin/python -c 'import jax; print("jax", jax.__version__)'
# What touches jax, in its quick cases: the rest has run above, on another Python but on the same code.
make --no-print-directory PYTHON="$newest" VENV=.venv-newest test \
    ARGS='tests/runtime tests/nn tests/models tests/train tests/test_checkpoint.py -m "not slow and not processes"'
