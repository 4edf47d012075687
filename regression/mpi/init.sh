#!/bin/sh
# What init writes is valid, says what it was made for, and trains as it is.
set -eu
job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT
cd "$job"
fail() { echo "$*"; exit 1; }
export OMPI_MCA_rmaps_base_oversubscribe=1

"$BRUME" init "$BRUME_REGRESSION_DIR/unit" -o mine > said 2>&1 || { cat said; fail "init fails"; }
"$BRUME" check mine/deck.toml > checked || fail "the deck is not valid"
grep -q '^# 1.85 M parameters for a text of .* tokens.$' mine/deck.toml || { cat mine/deck.toml; fail "the deck does not say its size"; }
ranks=$(sed -n 's/^devices_per_node = *\([0-9]*\) .*/\1/p' mine/deck.toml)
[ "$ranks" -ge 1 ] || fail "no ranks"
grep -q "mpirun -n $ranks brume run mine/deck.toml" said || { cat said; fail "the next command is not said"; }
# The command, with two ranks and measured times that are there.
mpirun -n 2 "$BRUME" run mine/deck.toml --steps 3 --set cluster.devices_per_node=2 \
  --set "cluster.profile=$BRUME_REGRESSION_DIR/decks/profile.toml" > steps 2> log || { cat log; fail "it does not train"; }
[ "$(grep -c '"loss"' mine/runs/first/metrics.jsonl)" -ge 3 ] || { cat steps log; fail "no steps"; }

code=0
"$BRUME" init "$BRUME_REGRESSION_DIR/unit" -o mine 2> said || code=$?
[ $code = 2 ] && grep -q 'mine/deck.toml: is there already' said || { cat said; fail "an older deck is not kept"; }
"$BRUME" init -o empty 2> said && "$BRUME" check empty/deck.toml > checked || fail "a deck without a text is not valid"
grep -q 'no text was named: `brume import tokens' said || { cat said; fail "what to do next is not said"; }
code=0
printf 'Too short.' > short
"$BRUME" init short -o short-one 2> said || code=$?
[ $code = 2 ] && grep -q 'a sequence takes 129' said && [ ! -e short-one/deck.toml ] || { cat said; fail "a text that is too short"; }
