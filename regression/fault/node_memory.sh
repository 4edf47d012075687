#!/bin/sh
# What all ranks of a node will take (arenas, copies of checkpoints, libraries) is compared with what their control group
# gives, before any rank takes it: where copies are too much the job trains without them, where all else is it ends
# with 4 and has not touched the memory.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
version_1=/sys/fs/cgroup/memory version_2=/sys/fs/cgroup
if [ -d $version_1 ]; then
  group=$version_1/brume-test-$$ limit_file=memory.limit_in_bytes peak_file=memory.max_usage_in_bytes
else
  group=$version_2/brume-test-$$ limit_file=memory.max peak_file=memory.peak
fi
mkdir "$group" 2> /dev/null && [ -w "$group/$limit_file" ] ||
  { rmdir "$group" 2> /dev/null; echo "skipped: no control group of memory can be made here"; exit 77; }
trap 'rmdir "$group" || true; rm -rf "$work"' EXIT

plan 'zero_level = 0' 4 - 2 2 > plan.toml
sed 's/^hidden_size.*/hidden_size = 512/; s/^num_layers.*/num_layers = 4/; s/^memory_gib.*/memory_gib = 0.5/
  s/^host_memory_gib.*/host_memory_gib = 0.5/' "$deck" > deck.toml

# in_group <MiB> <flag...>: the job with so much memory; sets `code`.
in_group() {
  echo $(($1 << 20)) > "$group/$limit_file"
  [ ! -w "$group/$peak_file" ] || echo 0 > "$group/$peak_file" 2> /dev/null || true
  shift
  rm -rf run
  code=0
  sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" mpirun -n 4 --oversubscribe "$BRUME" run deck.toml --plan plan.toml \
    --set "$profile" --set training.steps=2 --set output.trace=false -v "$@" > log 2>&1 || code=$?
}
# MiB of the debug line's n-th size.
size() {
  sed -n 's/.*ranks need \([0-9.]* [KMG]iB\) of host memory together, \([0-9.]* [KMG]iB\) are left.*/\'"$1"'/p' log |
    awk '{ print int($1 * ($2 == "GiB" ? 1024 : $2 == "KiB" ? 1 / 1024 : 1)) }'
}
fail() { cat log; echo "$1: exit code $code"; exit 1; }

in_group 3072 --set output.checkpoints=false
[ "$code" -eq 0 ] || fail "with memory for all"
without_copies=$(size 1) used=$((3072 - $(size 2)))
in_group 3072
with_copies=$(size 1)
[ "$code" -eq 0 ] && [ $((with_copies - without_copies)) -gt 40 ] || fail "copies take $with_copies - $without_copies MiB"
echo "$used MiB are used, the training takes $without_copies MiB, $with_copies with copies of checkpoints"

in_group $((used + without_copies + (with_copies - without_copies) / 2))
[ "$code" -eq 0 ] && grep -q 'training waits while one is written' log && [ -f run/checkpoints/step-2/manifest.json ] ||
  fail "without memory for copies"

# Arenas alone, without 32 MiB a rank for libraries, would fit.
in_group $((used + without_copies - 64))
[ "$code" -eq 4 ] && [ "$(grep -c "brume: .*this node's ranks need .* of host memory together" log)" -eq 1 ] ||
  fail "without memory for libraries"
[ ! -e run/checkpoints ] || fail "a checkpoint was begun"
if [ -r "$group/$peak_file" ]; then
  peak=$(($(cat "$group/$peak_file") >> 20))
  [ "$peak" -lt $((used + without_copies / 3)) ] || fail "$peak MiB were taken of $used in use and $without_copies to come"
fi
