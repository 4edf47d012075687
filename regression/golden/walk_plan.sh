#!/bin/sh
# The walk in the tutorial, line by line: plans for machines that are not here, as text, page and script for Megatron-LM.
set -eu
. "$BRUME_REGRESSION_DIR/walk.sh"
walk 'A plan for a machine that you do not have' 3
sh -eux walk > said 2> log || { cat said log; fail "the walk ends early"; }
cat said
grep -q '^stages\|^\[\[stages\]\]' plan.toml && grep -q '<svg class="lanes"' plan.html || fail "no plan"
grep -q -- '--num-layers 32' pretrain.sh && grep -q -- '--hidden-size 4096' pretrain.sh || { cat pretrain.sh; fail "no arguments"; }
[ "$(grep -c '^ *[124]  ' said)" -eq 3 ] || fail "no plan for each number of nodes"
