#!/bin/sh
# The plans of fixed decks and profiles, as text, against reviewed ones. `make golden-update` rewrites them.
set -eu
decks=$BRUME_REGRESSION_DIR/decks
golden=$BRUME_REGRESSION_DIR/golden
found=$(mktemp)
trap 'rm -f "$found"' EXIT
plan() { # <name> <deck> <profile> [flag...]
  name=$1 deck=$2 profile=$3
  shift 3
  "$BRUME" plan "$deck" --set "cluster.profile=$decks/$profile" "$@" > "$found"
  if [ -n "${GOLDEN_UPDATE:-}" ]; then cp "$found" "$golden/$name.expected"; fi
  diff "$golden/$name.expected" "$found"
}
plan quickstart "$BRUME_REGRESSION_DIR/../inputs/quickstart.toml" quickstart_profile.toml
plan pipeline "$BRUME_REGRESSION_DIR/../inputs/quickstart.toml" quickstart_profile.toml --set search.stages='[2, 4]'
plan tiny "$decks/tiny.toml" profile.toml
plan beside "$decks/beside/deck.toml" profile.toml --sweep model.seq_len=16,32
# The same with the profile that the deck names, beside it too.
"$BRUME" plan "$decks/beside/deck.toml" --sweep model.seq_len=16,32 | diff "$golden/beside.expected" -
plan sweep "$decks/tiny.toml" profile.toml --sweep cluster.devices_per_node=1,2,3,2,4,1
