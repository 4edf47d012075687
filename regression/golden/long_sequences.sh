#!/bin/sh
# The search finds plans for the longest sequences that ALST trains Llama 3 8B on, 500,000 tokens on one H100 and 3,700,000 on
# eight, and places them; without tiles of the MLP nothing fits (DeepSpeed's blog on ALST, July 2025).
set -eu
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
longest() { # <devices> <cp> <tokens>
  devices=$1
  set -- "$BRUME_REGRESSION_DIR/../inputs/llama-8b.toml" --set cluster.machine=dgx-h100 --set cluster.nodes=1 \
    --set "cluster.devices_per_node=$1" --set training.global_batch=1 --set 'search.stages=[1]' --set 'search.tp=[1]' \
    --set "search.cp=[$2]" --set "model.seq_len=$3"
  "$BRUME" plan "$@" -o "$devices.toml" 2> log || { cat log; exit 1; }
  grep '^why     without tiles of the MLP: nothing fits' log || { cat log; exit 1; }
  "$BRUME" analyze "$@" --plan "$devices.toml" | grep -A 1 '^stage  device memory'
}
longest 1 1 500000
longest 8 8 3700000
