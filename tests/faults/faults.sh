#!/bin/sh
# Planted faults, if there is a Python to plant them with: see faults.py.
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 > /dev/null || { echo "ok 1 - planted faults # SKIP python3 is not installed"; echo "1..1"; exit 0; }
exec python3 "$here/faults.py" "${DAY0_BUILD:-$here/../../build}/day0"
