#!/usr/bin/env bash
# scripts/lowtide prints the program's output and nothing else on stdout, and keeps the folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

printed=$("$root/scripts/lowtide" --version 2>/dev/null)
[[ $printed == "$("$root/build/release/bin/lowtide" --version)" ]] || { echo "stdout was: $printed"; exit 1; }

# A relative path is the caller's.
printf 'not a parity file' >here.safetensors
status=0
message=$("$root/scripts/lowtide" verify here.safetensors 2>&1 >/dev/null) || status=$?
[[ $status == 1 && $message == *here.safetensors* && $message != *"No such file"* ]] || {
  echo "exit $status: $message"
  exit 1
}
