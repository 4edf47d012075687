#!/bin/sh
# jobs/mpirun.sh goes on after a killed rank, and ends with a checkpoint and 75, leaving nobody behind, on a signal.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
sed "s/^steps  .*/steps = 400/; s/^checkpoint_every.*/checkpoint_every = 20/; s/^log_every .*/log_every = 10/" "$deck" > deck.toml
sed -i "/^host_memory_gib/a profile = \"${profile#*=}\"" deck.toml

start() { # <directory> <steps>
  sed "s/^directory .*/directory = \"$1\"/; s/^steps .*/steps = $2/" deck.toml > "$1.toml"
  bash "$BRUME_REGRESSION_DIR/../jobs/mpirun.sh" "$1.toml" 4 --oversubscribe > "$1.log" 2>&1 &
  job=$!
  for _ in $(seq 600); do
    if grep -q "^ *[1-9][0-9]*0 .*$a_step" "$1.log"; then break; fi
    sleep 0.05
  done
  launcher=$(pgrep -P "$job" mpirun)
  ranks=$(pgrep -P "$launcher")
}

start killed 400
kill -9 "$(echo "$ranks" | tail -n 1)"
wait "$job"
cat killed.log
grep -q 'a rank was lost (exit code 137): resuming' killed.log
ls killed/checkpoints | grep -qx step-400

start asked 1000000
kill -TERM "$job"
code=0
wait "$job" || code=$?
cat asked.log
[ "$code" -eq 75 ] || { echo "expected exit code 75, got $code"; exit 1; }
stopped=$(sed -n 's/^stopped after \([0-9]*\) of.*/\1/p' asked.log)
[ -f "asked/checkpoints/step-$stopped/manifest.json" ] || { echo "no checkpoint of step '$stopped'"; exit 1; }
sleep 1
for process in $launcher $ranks; do
  case "$(ps -o stat= -p "$process" || true)" in
    "" | Z*) ;;
    *) echo "process $process was left behind"; exit 1 ;;
  esac
done
