#!/bin/sh
# Ranks that a plan leaves out need hardly any of a core's time while the others train, survive requests to stop that
# reach them, and end with the others.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/two_groups.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
decks=$BRUME_REGRESSION_DIR/decks
complain() { cat log; echo "$1"; exit 1; }

# Two groups of two ranks, of which the plan takes the second one.
sed 's/^ranks_per_node   = 4/ranks_per_node   = 2/' "$decks/profile.toml" | tee one.toml > other.toml
two_groups one other
plan '' 4 other 2 1 > plan.toml
mpirun -n 4 --oversubscribe "$BRUME" run deck.toml --plan plan.toml --set training.steps=100000 > log 2>&1 &
job=$!
for _ in $(seq 600); do
  if grep -q "$a_step" log; then break; fi
  sleep 0.05
done
idle=
for process in $(pgrep -P "$job"); do
  ! tr '\0' '\n' < "/proc/$process/environ" | grep -q '^OMPI_COMM_WORLD_RANK=[01]$' || idle="$idle $process"
done
[ "$(echo $idle | wc -w)" -eq 2 ] || complain "which ranks do not train?"

# Hundredths of a second that a process has computed.
computed() { sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'; }
for process in $idle; do computed "$process"; done > before
kill -USR1 $idle
sleep 3
kill -0 "$job" || complain "a rank that does not train has ended the job"
for process in $idle; do computed "$process"; done > after
paste before after | awk '{ print $2 - $1, "of 300"; if ($2 - $1 > 30) bad = 1 } END { exit bad }' ||
  complain "a rank that does not train needs a core"

kill -USR1 "$job"
code=0
wait "$job" || code=$?
[ "$code" -eq 75 ] || complain "expected exit code 75, got $code"
stopped=$(sed -n 's/^stopped after \([0-9]*\) of.*/\1/p' log)
[ -f "run/checkpoints/step-$stopped/manifest.json" ] || complain "no checkpoint of step '$stopped'"
