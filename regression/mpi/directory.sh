#!/bin/sh
# What a run directory promises: it belongs to one job; damage to all checkpoints is no reason to start anew in
# silence; data that are others than those trained on are noticed; samples are neither skipped nor repeated.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
refused() { # <code> <sentence> <command...>
  expected=$1
  sentence=$2
  shift 2
  code=0
  "$@" > log 2>&1 || code=$?
  cat log
  [ "$code" -eq "$expected" ] || { echo "expected exit code $expected, got $code"; exit 1; }
  grep -qF -- "$sentence" log || { echo "nobody said '$sentence'"; exit 1; }
}

# One owner at a time. A kill leaves no lock, only a note of it.
mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set training.steps=100000 > first 2>&1 &
first=$!
for _ in $(seq 600); do
  if grep -q "$a_step" first; then break; fi
  sleep 0.05
done
refused 2 "run belongs to another job (host $(hostname), process " tiny_job --set training.optimizer.lr=1e-3
kill -9 "$(pgrep -P "$first" | head -n 1)"
code=0
wait "$first" || code=$?
[ "$code" -eq 137 ] || { cat first; echo "expected exit code 137, got $code"; exit 1; }
tiny_job --resume none > log 2>&1
cat log
grep -q 'run/lock: the last job here was killed (host' log
[ ! -e run/lock ] || { echo "the lock outlived its job"; exit 1; }

# Job after job is killed where it began: somebody has to look.
printf 'host nowhere, process 1\n12 3\n' > run/lock
refused 4 'the last 3 jobs began after step 12 and were killed' tiny_job --steps 14
refused 4 'the last 3 jobs began after step 12 and were killed' tiny_job --steps 14
rm run/lock

# No checkpoint that can be used.
cp -r run damaged
rm -r damaged/previous-*
for file in damaged/checkpoints/*/rank-0.h5; do printf 'x' | dd of="$file" bs=1 seek=3000 conv=notrunc status=none; done
refused 6 'no checkpoint can be used' tiny_job --set output.directory=damaged --steps 14
ls damaged/checkpoints | grep -qx step-12
[ ! -e damaged/previous-1 ] || { echo "checkpoints were set aside"; exit 1; }
tiny_job --set output.directory=damaged --resume none --steps 4

# Other data: another seed, another file.
refused 2 'was trained on other data, or in another order' tiny_job --set training.seed=2 --steps 14
refused 2 'was trained on other data, or in another order' tiny_job --set data.train=valid.tok --steps 14
cp -r run other
tiny_job --set output.directory=other --set training.seed=2 --steps 14 --new-data
grep -q '"samples": 16,' other/checkpoints/step-14/manifest.json || { echo "new data begin at their first sample"; exit 1; }
# What changes the course of the training is said.
tiny_job --set output.directory=other --set training.seed=2 --set training.optimizer.lr=1e-3 --steps 15 > log 2>&1
cat log
grep -qx 'training.optimizer.lr = 0.001 from here on, it was 0.003' log || { echo "nobody said that the rate is another one"; exit 1; }
# No step is left for another rate; without one a job has nothing to do.
refused 2 'is after all of 15 steps, so training.optimizer.lr = 0.002 would change nothing, it was 0.001' \
  tiny_job --set output.directory=other --set training.seed=2 --set training.optimizer.lr=2e-3 --steps 15
tiny_job --set output.directory=other --set training.seed=2 --set training.optimizer.lr=1e-3 --steps 15

# Twelve steps of 8 samples, then two of 4.
refused 2 'on resume --replan' tiny_job --set training.global_batch=4 --steps 14
tiny_job --set training.global_batch=4 --replan --steps 14
grep -q '"samples": 104,' run/checkpoints/step-14/manifest.json || { echo "samples were skipped or repeated"; exit 1; }

# Time counts from the start of the process: none is left, but each turn makes a step.
refused 75 'stopped after 1 of 12 steps' tiny_job --set output.directory=late --max-minutes 0.001
refused 75 'stopped after 2 of 12 steps' tiny_job --set output.directory=late --max-minutes 0.001
