#!/bin/sh
# The self-test of a healthy machine passes, and its tables are whole: 12 collectives without a wrong value, speeds
# beside a profile's, and four ways to split that train like one rank.
set -eu
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
mpirun -n 2 --oversubscribe "$BRUME" selftest --profile "$BRUME_REGRESSION_DIR/decks/profile.toml" > out
cat out
grep -q '^selftest passed$' out
[ "$(grep -cE '^(all-reduce|reduce-scatter|all-gather|messages) +2 +[0-9]+ +0$' out)" -eq 12 ]
[ "$(grep -cE '^(all_reduce|reduce_scatter|all_gather|send|copy_in|copy_out|matrix product).*/s +.*/s +[0-9.]+$' out)" -eq 7 ]
[ "$(grep -cE '^(data|tensor|pipeline|sharded, recomputed, offloaded) +[0-9.e+-]+ +[0-9.e+-]+ ' out)" -eq 4 ]
