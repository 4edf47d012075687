#!/bin/sh
# A training in fp8 on an emulated device and on the host, from the same deck: both round the same factors to the same
# numbers, so their losses differ by what sums in another order do, as tolerances of the contract have it. bf16's differ more.
set -eu
. "$BRUME_REGRESSION_DIR/plans.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$BRUME_HOST" import tokens "$BRUME_REGRESSION_DIR/decks" -o .
plan '' 2 - 1 1 > one.toml
losses() {  # PROGRAM PRECISION: of each step
  "$1" run "$BRUME_REGRESSION_DIR/decks/tiny.toml" --plan one.toml --set cluster.profile="$BRUME_REGRESSION_DIR/decks/profile.toml" \
    --set cluster.devices_per_node=1 --set model.num_layers=2 --set training.steps=8 --set training.precision="$2" \
    --set output.trace=false --set output.checkpoints=false --set output.directory="$3" > log 2>&1 || { cat log; exit 1; }
  cat log >&2
  h5dump -y -m %.17g -d /steps/loss "$3/run.h5" | sed -n '/DATA/,/}/p' | grep -oE '[0-9]+[.][0-9]+'
}
losses "$BRUME" fp8 device > a
losses "$BRUME_HOST" fp8 host > b
losses "$BRUME_HOST" bf16 bf16 > c
largest() { paste "$1" "$2" | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d } END { print NR == 8 ? most + 0 : "no losses" }'; }
echo "device against host: $(largest a b); fp8 against bf16: $(largest b c)"
[ "$(awk -v x="$(largest a b)" 'BEGIN { print (x < 4.2e-3) }')" = 1 ]
[ "$(awk -v x="$(head -n 1 a)" -v y="$(head -n 1 b)" 'BEGIN { d = x / y - 1; print (d < 1e-4 && d > -1e-4) }')" = 1 ]
[ "$(awk -v x="$(largest b c)" -v y="$(largest a b)" 'BEGIN { print (x > y) }')" = 1 ]
