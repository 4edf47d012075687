#!/bin/sh
# The decks that come with the program are valid, and those that a search is quick about can be planned.
set -eu
inputs=$BRUME_REGRESSION_DIR/../inputs
for deck in "$inputs"/*.toml; do
  "$BRUME" check "$deck" > checked || { echo "$deck is not valid"; exit 1; }
done
for name in gpt2-124m llama-1b llama-8b qwen3-8b falcon-7b; do
  "$BRUME" plan "$inputs/$name.toml" --top 1 -o plan.toml > log 2>&1 || { cat log; exit 1; }
  grep -q '^speed ' log && "$BRUME" analyze "$inputs/$name.toml" --plan plan.toml > log 2>&1 || { cat log; exit 1; }
done
