#!/bin/sh
# One machine that passes for two groups of two ranks, one of them three times as slow: it plans, trains in the
# order of the pipeline, resumes, and has the losses of a run on one group, wherever its stages lie.
set -eu
decks=$BRUME_REGRESSION_DIR/decks
. "$BRUME_REGRESSION_DIR/two_groups.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$BRUME" import tokens "$BRUME_REGRESSION_DIR" -o .
sed 's/^ranks_per_node   = 4/ranks_per_node   = 2/' "$decks/profile.toml" > fast.toml
awk '/^(forward|backward)_s/ { $3 *= 3 } { print }' fast.toml > slow.toml
two_groups fast slow
run() { timeout 200 mpirun -n 4 --oversubscribe "$BRUME" run "$@"; }
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | sed -n '/DATA/,/}/p' | grep -E '[0-9]'; }
same() { # <run> <run>: losses within 1e-5, step by step
  losses "$1" > a
  losses "$2" > b
  paste a b | tr -d ',' | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-5) { print "differs:", $0; bad = 1 } n++ }
    END { if (n < 12) bad = 1; exit bad }'
}
knobs='zero_level = 1
full_recompute_layers = 1
act_offload_ratio = 0.5'

run "$decks/tiny.toml" --set "cluster.profile=$decks/profile.toml" --set output.directory=whole
# The pipeline against the order of the deck, so that all ranks change places, and one end in between.
plan "$knobs" 1 slow 2 1 3 fast 1 2 > reversed.toml
run deck.toml --plan reversed.toml --set output.directory=reversed --steps 5
run deck.toml --set output.directory=reversed
same whole reversed
plan "$knobs" 1 slow 1 1 2 fast 2 1 1 slow 1 1 > between.toml
run deck.toml --plan between.toml --set output.directory=between
same whole between
# On one of the groups alone the other ranks have nothing to do.
plan "$knobs" 4 slow 2 1 > alone.toml
run deck.toml --plan alone.toml --set output.directory=alone
same whole alone
# What is searched names groups, and the simulation takes each one's profile.
"$BRUME" plan deck.toml --set search.dp='[1]' --set search.tp='[1]' --set search.stages='[4]' -o searched.toml
grep -q 'group *= "fast"' searched.toml && grep -q 'group *= "slow"' searched.toml
run deck.toml --plan searched.toml --set output.directory=searched
same whole searched
simulated() { "$BRUME" simulate deck.toml --plan "$1" --json | sed -n 's/^ *"iteration_s": \([0-9.e-]*\),*/\1/p'; }
plan "$knobs" 4 fast 2 1 > fast_alone.toml
echo "fast $(simulated fast_alone.toml) slow $(simulated alone.toml)"
awk -v f="$(simulated fast_alone.toml)" -v s="$(simulated alone.toml)" 'BEGIN { exit !(f > 0 && s > 1.5 * f) }'
