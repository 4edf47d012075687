#!/bin/sh
# The walks in README, line by line: a training on one's own text on two ranks, which four ranks go on with. This machine
# is measured as a stranger's would be.
set -eu
. "$BRUME_REGRESSION_DIR/walk.sh"
export XDG_CACHE_HOME="$work/cache" HOME="$work"
steps() { sed -n 's/^{"step":\([0-9]*\),.*"loss":\([^,]*\).*/\1 \2/p' mine/runs/first/metrics.jsonl; }
walk 'A training on your own text' 4
sh -eux walk > said 2> log || { cat said log; fail "the walk ends early"; }
cat said
steps > on-two
[ "$(wc -l < on-two)" -eq 120 ] || fail "$(wc -l < on-two) steps of 120"
awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first - 1) }' on-two || fail "it does not learn"
grep -q '^loss  *[0-9]' said || fail "no evaluation"
grep -q '<figure>' mine/runs/first/report.html || fail "no report"

walk 'The same training on twice the ranks' 1
sh -eux walk > said 2> log || { cat said log; fail "the walk ends early"; }
cat said
grep -q 'resuming from .* after 120 steps' log || { cat log; fail "it did not go on"; }
grep -q ' on 4 ranks of ' said || fail "not on four ranks"
grep -q '^ *121  ' said || fail "step 121 is not the first line"
steps > on-four
[ "$(head -n 120 on-four)" = "$(cat on-two)" ] && [ "$(wc -l < on-four)" -eq 240 ] || fail "$(wc -l < on-four) steps of 240"
# No jump where the ranks changed: loss 121 lies within what single steps do.
awk 'NR > 70 && NR <= 120 { if (min == "" || $2 < min) min = $2; if ($2 > max) max = $2 } NR == 121 { found = $2 }
  END { wide = 0.5 * (max - min); exit !(found > min - wide && found < max + wide) }' on-four || fail "the loss jumps at step 121"
