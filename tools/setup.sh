#!/bin/sh
# usage: setup.sh build|test|lint|fuzz : installs the Debian/Ubuntu packages that are missing for that purpose.
# Says nothing when nothing is missing. Where it may not install, it says what to install.
set -eu
packages="gcc make meson ninja-build pkg-config liblua5.4-dev libevent-dev libcurl4-openssl-dev libssl-dev libhwloc-dev
    libjpeg-dev libpng-dev libwebp-dev libgif-dev libpcre2-dev libutf8proc-dev"
case "${1:-build}" in
build) ;;
test) packages="$packages libcmocka-dev python3" ;;
lint) packages="$packages libcmocka-dev clang-format universal-ctags binutils" ;;
fuzz) packages="$packages libcmocka-dev clang" ;;
*) echo "usage: setup.sh build|test|lint|fuzz" >&2; exit 2 ;;
esac
command -v dpkg-query > /dev/null || exit 0 # not Debian: meson names what is missing
missing=""
for p in $packages; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2> /dev/null || true)
    [ "$status" = installed ] || missing="$missing $p"
done
# The sanitizer runtime of clang carries its version in its name.
if [ "${1:-build}" = fuzz ] && command -v clang > /dev/null; then
    v=$(clang -dumpversion | cut -d. -f1)
    [ "$(dpkg-query -W -f '${db:Status-Status}' "libclang-rt-$v-dev" 2> /dev/null || true)" = installed ] || missing="$missing libclang-rt-$v-dev"
fi
[ -n "$missing" ] || exit 0
run=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null && sudo -n true 2> /dev/null && run="sudo -n" ||
        { echo "missing packages; install them with: sudo apt-get install$missing" >&2; exit 3; }
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
{ $run apt-get update && $run apt-get install -y --no-install-recommends $missing; } > "$log" 2>&1 ||
    { tail -20 "$log" >&2; rm -f "$log"; echo "could not install:$missing" >&2; exit 3; }
rm -f "$log"
