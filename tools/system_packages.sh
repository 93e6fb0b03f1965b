#!/usr/bin/env bash
# Makes sure of what pip cannot install: a C++20 compiler, Python's headers and (with --tests) GoogleTest, and
# nlohmann-json for the C++ examples, which are tested.
# Installs missing packages with apt-get when it may, otherwise says what to install.
# usage: tools/system_packages.sh <python> [--tests]
set -euo pipefail

python=$1
missing=()
command -v clang++ >/dev/null || command -v g++ >/dev/null || missing+=(g++)
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -f "$headers/Python.h" ] || missing+=("python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev")
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ "${2:-}" = --tests ]; then
  [ -f /usr/include/gtest/gtest.h ] || [ -f /usr/local/include/gtest/gtest.h ] || missing+=(libgtest-dev)
  [ -f /usr/include/nlohmann/json.hpp ] || [ -f /usr/local/include/nlohmann/json.hpp ] || missing+=(nlohmann-json3-dev)
fi
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null; }
else
  echo "Missing system packages: ${missing[*]}" >&2
  echo "On Debian or Ubuntu: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
