#!/bin/sh
# Mist's published predictions of its quick test, through `import mist`: time and both peaks of the untuned plan by
# `analyze`, time of the tuned one by `plan`.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$BRUME" import mist "$BRUME_REGRESSION_DIR/decks/mist-small-base.yaml" -o "$work"
"$BRUME" analyze "$work/deck.toml" --plan "$work/plan.toml" --json > "$work/found"
expect() { # <key> <value> <tolerance>
  found=$(sed -n "s/^ *\"$1\": \([0-9.e+-]*\),*$/\1/p" "$work/found")
  awk -v key="$1" -v f="$found" -v v="$2" -v t="$3" 'BEGIN {
    if (f != "" && f - v <= t && v - f <= t) exit 0
    print "expected " key " = " v ", found " f; exit 1 }'
}
expect iteration_s 10.659405382 1e-6
expect peak_forward_bytes 20190593024 0   # 19255.25 MiB
expect peak_backward_bytes 20450508806 0  # 19503.125 MiB, and 6 bytes that it rounds away
"$BRUME" analyze "$work/deck.toml" --plan "$work/plan.toml" --explain > "$work/explained"
grep -q "10.659405382 s" "$work/explained"
grep -q ", 0 interpolated, 0 by roofline" "$work/explained"
"$BRUME" plan "$work/deck.toml" --json > "$work/found"
expect iteration_s 9.26892465 1e-6
