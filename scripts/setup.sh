#!/usr/bin/env bash
# setup.sh PYTHON VENV EXTRA: make the virtual environment VENV with PYTHON and install jaxpipe[EXTRA]
# into it, editable. Called by the Makefile when VENV/.installed-EXTRA is missing or out of date.
set -euo pipefail

python=$1 venv=$2 extra=$3
say() { printf 'setup: %s\n' "$*" >&2; }

if ! "$python" -c '' 2>/dev/null; then
    say "'$python' does not start. jaxpipe needs Python 3.11 or newer:"
    say "install it (Debian, Ubuntu: apt-get install python3 python3-venv) or say make PYTHON=/path/to/python3."
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    found=$("$python" -c 'import platform; print(platform.python_version())')
    say "'$python' is Python $found, and jaxpipe needs 3.11 or newer: say make PYTHON=/path/to/python3.11."
    exit 1
fi

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        say "Python $version is here but cannot make virtual environments (its venv or ensurepip is missing)."
        say "On Debian and Ubuntu: apt-get install python3-venv (or python$version-venv)."
        exit 1
    fi
    say "making $venv with Python $version"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

say "installing jaxpipe[$extra] into $venv (once; about a minute)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extra]"
touch "$venv/.installed-$extra"
