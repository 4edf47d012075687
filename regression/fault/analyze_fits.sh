#!/bin/sh
# `analyze` and `simulate` agree on what fits: a plan does in what it is placed in, and not in a byte less.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for options in "" "--set search.stages=[2] --set search.run_ahead=[1]"; do
  set -- "$BRUME_REGRESSION_DIR/decks/tiny.toml" --set "cluster.profile=$BRUME_REGRESSION_DIR/decks/profile.toml"
  "$BRUME" plan "$@" $options --json -o plan.toml > plan.json 2> /dev/null
  bytes=$(sed -n 's/.*"placed_device_bytes": \([0-9]*\).*/\1/p' plan.json | head -n 1)
  for less in 0 1; do
    gib=$(awk -v bytes="$bytes" -v less=$less 'BEGIN { printf "%.17g", (bytes - less) / 2 ^ 30 }')
    for verb in analyze simulate; do
      code=0
      "$BRUME" $verb "$@" --plan plan.toml --set "cluster.memory_gib=$gib" > out 2>&1 || code=$?
      [ $code = $((3 * less)) ] || { cat out; echo "$verb in $((bytes - less)) of $bytes bytes: $code"; exit 1; }
    done
  done
done
