#!/bin/sh
# The walks in the tutorial, line by line: a training on one's own text on two ranks, which four ranks go on with. This machine
# is measured for the first as a stranger's would be; the second takes a fixed profile, as a second measurement tells no more.
set -eu
. "$BRUME_REGRESSION_DIR/walk.sh"
export XDG_CACHE_HOME="$work/cache" HOME="$work"
steps() { sed -n 's/^{"step":\([0-9]*\),.*"loss":\([^,]*\).*/\1 \2/p' mine/runs/first/metrics.jsonl; }
walk 'A training on your own text' 4
first=$(sed -n 's/.* run .*--steps //p' walk)
sh -eux walk > said 2> log || { cat said log; fail "the walk ends early"; }
cat said
steps > on-two
[ "$(wc -l < on-two)" -eq "$first" ] || fail "$(wc -l < on-two) steps of $first"
awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first - 1) }' on-two || fail "it does not learn"
grep -q '^loss  *[0-9]' said || fail "no evaluation"
grep -q '<figure>' mine/runs/first/report.html || fail "no report"

walk 'The same training on twice the ranks' 1
sed -i "s|^\[cluster\]|&\nprofile = \"$BRUME_REGRESSION_DIR/decks/quickstart_profile.toml\"|" mine/deck.toml
all=$(sed -n 's/.* run .*--steps //p' walk)
sh -eux walk > said 2> log || { cat said log; fail "the walk ends early"; }
cat said
grep -q "resuming from .* after $first steps" log || { cat log; fail "it did not go on"; }
grep -q ' on 4 ranks of ' said || fail "not on four ranks"
grep -q "^ *$((first + 1))  " said || fail "step $((first + 1)) is not the first line"
grep -q "step $((first + 1)) is the first line" "$BRUME_REGRESSION_DIR/../inputs/tutorial.md" || fail "the tutorial names another step"
steps > on-four
[ "$(head -n "$first" on-four)" = "$(cat on-two)" ] && [ "$(wc -l < on-four)" -eq "$all" ] || fail "$(wc -l < on-four) steps of $all"
# No jump where the ranks changed: the next loss lies within what single steps do.
awk -v n="$first" 'NR > n - 30 && NR <= n { if (min == "" || $2 < min) min = $2; if ($2 > max) max = $2 } NR == n + 1 { found = $2 }
  END { wide = 0.5 * (max - min); exit !(found > min - wide && found < max + wide) }' on-four || fail "the loss jumps"
