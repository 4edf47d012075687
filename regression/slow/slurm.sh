#!/bin/sh
# The job template on a real Slurm of one machine, on 2 and on 4 ranks: five times a signal, a checkpoint, exit 75, requeue
# and resume; a killed rank; signals to all processes of a job; a suspended job; a cancelled job; the time limit, with and
# without a signal ahead of it. Each job ends with the bits of one that nothing disturbed. And srun without PMIx.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/slow/slurm_site.sh"
start_slurm n1

fail() {
  cat "$name.log"
  tail -n 20 log/ctld.log
  echo "$name: $1"
  exit 1
}

# begin NAME RANKS STEPS [OPTION...]: submits a job; `keys` are brume's own options.
keys=
begin() {
  name=$1 ranks=$2 steps=$3
  shift 3
  sed "s/^devices_per_node .*/devices_per_node = $ranks/; s/^steps .*/steps = $steps/
    s/^checkpoint_every .*/checkpoint_every = 1000/; s/^log_every .*/log_every = 10/
    s/^directory .*/directory = \"$name\"/
    /^host_memory_gib/a profile = \"${profile#*=}\"" "$deck" > "$name.toml"
  id=$(sbatch --parsable --ntasks-per-node="$ranks" --output="$name.log" "$@" "$BRUME_REGRESSION_DIR/../jobs/slurm.sbatch" "$name.toml" $keys)
}

trains() { tail -n 1 "$name.log" 2> /dev/null | grep -q "$a_step"; }
turns() { cat "$name.log" 2> /dev/null | grep -c 'resuming from .* after [0-9]* steps' || true; }

# in_turn N: waits until the job has been resumed N times and trains.
in_turn() {
  for _ in $(seq 1200); do
    [ "$(turns)" -lt "$1" ] || ! trains || return 0
    sleep 0.1
  done
  fail "turn $1 did not begin"
}

# ends: waits until the job has done its steps; its end is that of the same training by mpirun, undisturbed.
ends() {
  for _ in $(seq 3600); do
    [ ! -f "$name/checkpoints/step-$steps/manifest.json" ] || [ -n "$(squeue -h)" ] || break
    sleep 0.1
  done
  [ -f "$name/checkpoints/step-$steps/manifest.json" ] || fail "the job did not end"
  [ -d "like-$ranks-$steps" ] || mpirun -n "$ranks" --oversubscribe --bind-to none "$BRUME" run "$name.toml" \
    --set output.directory="like-$ranks-$steps" > "like-$ranks-$steps.log" 2>&1
  [ "$(state "$name" "$steps")" = "$(state "like-$ranks-$steps" "$steps")" ] || fail "the end is not that of a job without signals"
  echo "$name: $(turns) turns more, the end is that of a job without signals"
}

# Without PMIx each process would be a job of its own: one line for all of them, not a page of MPI's own for each.
code=0
srun --mpi=none -n 4 "$BRUME" run "$deck" --set "$profile" > lone.log 2>&1 || code=$?
name=lone
[ "$code" -eq 2 ] && [ "$(grep -c 'brume: .*Start them with srun --mpi=pmix' lone.log)" -eq 1 ] && [ "$(grep -vc '^srun: ' lone.log)" -eq 1 ] ||
  fail "srun without PMIx: exit code $code"

for n in 2 4; do
  begin "signalled-$n" "$n" 12000
  for turn in 0 1 2 3 4; do
    in_turn "$turn"
    scancel --signal=USR1 "$id"
  done
  ends
  [ "$(grep -c 'stopped after .* of 12000 steps' "$name.log")" -eq 5 ] || fail "five signals did not stop it five times"
done

begin killed 2 3000
for _ in $(seq 600); do [ ! -d killed/checkpoints/step-1000 ] || break; sleep 0.1; done
kill -9 "$(pgrep -n -f 'brume run killed.toml')"
ends
[ "$(turns)" -ge 1 ] || fail "it was not started again"

# The signals come to the template's shell, to srun and to the ranks.
begin full 2 6000
in_turn 0
scancel --full --signal=USR1 "$id"
ends
[ "$(turns)" -ge 1 ] || fail "it was not started again"

# The batch system stops all of its processes, for longer than a rank may be silent, and lets them go on.
keys='--set training.heartbeat_timeout_s=3'
begin suspended 2 5000
keys=
in_turn 0
scontrol suspend "$id"
sleep 1
stood=$(tail -n 1 suspended.log)
sleep 8
[ "$(tail -n 1 suspended.log)" = "$stood" ] || fail "it went on while it was suspended"
scontrol resume "$id"
ends
[ "$(turns)" -eq 0 ] || fail "a job that was suspended was started again"

# What is cancelled stays so, with a checkpoint of the last step.
begin cancelled 2 100000
in_turn 0
scancel "$id"
for _ in $(seq 600); do [ -n "$(squeue -h)" ] || break; sleep 0.1; done
stopped=$(sed -n 's/^stopped after \([0-9]*\) of.*/\1/p' cancelled.log)
[ -f "cancelled/checkpoints/step-$stopped/manifest.json" ] || fail "no checkpoint of the last step '$stopped'"
[ -z "$(squeue -h)" ] || fail "a cancelled job went on"

# The limit of one minute: a signal ahead of it, or none, where the job knows its end.
begin warned 2 80000 --time=1 --signal=USR1@40
ends
[ "$(turns)" -ge 1 ] || fail "80000 steps took less than the limit"
begin limited 2 80000 --time=1 --signal=CONT@20
ends
[ "$(turns)" -ge 1 ] || fail "80000 steps took less than the limit"
