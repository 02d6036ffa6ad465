#!/bin/sh
# usage: venv.sh --print | clients | torch : makes a Python virtual environment outside the tree ($DAY0_VENV, default
# ~/.cache/day0-venv) and installs what that purpose needs. Exit 77 when nothing can be installed (no Python, no network).
set -eu
venv=${DAY0_VENV:-$HOME/.cache/day0-venv}
[ "${1:-}" != --print ] || { echo "$venv"; exit 0; }
case "${1:-}" in
clients) wanted="openai" modules="openai" ;;
torch) wanted="torch torchvision transformers safetensors tokenizers numpy jinja2 pillow>=12.2,<13" modules="torch torchvision transformers safetensors tokenizers numpy jinja2 PIL" ;;
*) echo "usage: venv.sh --print | clients | torch" >&2; exit 2 ;;
esac
command -v python3 > /dev/null || { echo "python3 is not installed" >&2; exit 77; }
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" > /dev/null 2>&1 || { echo "cannot make a virtual environment at $venv" >&2; exit 77; }
for m in $modules; do
    "$venv/bin/python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$m') is None)" || need=1
done
[ -n "${need:-}" ] || exit 0
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check $wanted > /dev/null 2>&1 ||
    { echo "cannot install $wanted (offline?)" >&2; exit 77; }
