#!/bin/sh
# The decks that come with the program are valid and can be planned, but for the quick start, which other tests train, and
# `analyze` says of a plan what `plan` says. Of each a part of the space is searched, to be quick.
set -eu
inputs=$BRUME_REGRESSION_DIR/../inputs
for deck in "$inputs"/*.toml; do
  "$BRUME" check "$deck" > /dev/null || { echo "$deck is not valid"; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for deck in "$inputs"/*.toml; do
  [ "$(basename "$deck")" != quickstart.toml ] || continue
  "$BRUME" plan "$deck" --top 1 -o "$work/plan.toml" --set search.time_limit_s=20 --set search.no_recompute=false --set search.unequal_stages=false \
    --set search.run_ahead=[1] > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  grep '^speed \|^length ' "$work/log" > "$work/planned" && "$BRUME" analyze "$deck" --plan "$work/plan.toml" > "$work/analyzed" 2>&1 ||
    { cat "$work/log" "$work/analyzed"; exit 1; }
  grep '^speed \|^length ' "$work/analyzed" | diff "$work/planned" -
done

# Failures of nodes lengthen a training.
analyze() { "$BRUME" analyze "$deck" --plan "$work/plan.toml" --set output.node_mtbf_hours=10 "$@"; }
analyze --json > "$work/json"
number() { sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*/\1/p" "$work/json"; }
awk -v share="$(number goodput)" -v hours="$(number hours)" -v long="$(number hours_with_failures)" \
  'BEGIN { exit !(share > 0.5 && share < 0.99 && long * share / hours > 0.999 && long * share / hours < 1.001) }' &&
  analyze | grep -q '^goodput ' || { cat "$work/json"; echo "no goodput"; exit 1; }
