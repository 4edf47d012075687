#!/bin/sh
# A rank that computes half as fast as the other one of its stage is named.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
plan 'zero_level = 1' 4 - 2 1 > plan.toml
sed "s/^devices_per_node.*/devices_per_node = 2/; s/^hidden_size.*/hidden_size = 256/; s/^memory_gib.*/memory_gib = 0.1/" "$deck" > deck.toml
mpirun -n 2 --oversubscribe "$BRUME" run deck.toml --plan plan.toml --set "$profile" --set training.steps=4000 \
  --set output.trace=false > log 2>&1 &
job=$!
for _ in $(seq 600); do
  if grep -q "$a_step" log; then break; fi
  sleep 0.05
done
for process in $(pgrep -P "$job"); do
  ! tr '\0' '\n' < "/proc/$process/environ" | grep -q '^OMPI_COMM_WORLD_RANK=1$' || slow=$process
done
while ! grep -q 'rank 1 is slower than the others' log && kill -0 "$job" 2> /dev/null; do
  kill -STOP "$slow" && sleep 0.02 && kill -CONT "$slow" && sleep 0.01 || break
done
kill -CONT "$slow" 2> /dev/null || true
kill -USR1 "$job" 2> /dev/null || true
code=0
wait "$job" || code=$?
cat log
grep -q 'rank 1 is slower than the others of its stage: compute takes' log
