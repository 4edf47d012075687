#!/bin/sh
# The job template on a real Slurm of one machine, on 2 and on 4 ranks: five times a signal, a checkpoint, exit 75, requeue
# and resume; a killed rank; signals to all processes of a job; a cancelled job; the time limit, with and without a
# signal ahead of it. Each job ends with the bits of one that nothing disturbed.
set -eu
command -v slurmctld > /dev/null && command -v slurmd > /dev/null && [ "$(id -u)" -eq 0 ] ||
  { echo "skipped: needs Slurm's daemons (make deps-slurm) and root"; exit 77; }
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
end() {
  scancel --user=root 2> /dev/null || true
  pkill -f "slurm(ctld|d) -f $work/slurm.conf" || true
  sleep 1
  rm -rf "$work"
}
trap end EXIT
mkdir state spool log
host=$(hostname -s)
# A requeued job is held until its credential has expired: 120 s unless told.
cat > slurm.conf <<CONF
ClusterName=brume
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPort=18817
SlurmdPort=18818
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/ctld.pid
SlurmdPidFile=$work/d.pid
SlurmctldLogFile=$work/log/ctld.log
SlurmdLogFile=$work/log/d.log
SlurmdParameters=config_overrides
KillWait=30
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2
MpiParams=ports=18900-18999
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
export SLURM_CONF="$work/slurm.conf" OMPI_MCA_mpi_yield_when_idle=1
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
for _ in $(seq 30); do sinfo -h 2> /dev/null | grep -q idle && break; sleep 1; done

fail() {
  cat "$name.log"
  tail -n 20 log/ctld.log
  echo "$name: $1"
  exit 1
}

# begin NAME RANKS STEPS [OPTION...]: submits a job.
begin() {
  name=$1 ranks=$2 steps=$3
  shift 3
  sed "s/^devices_per_node .*/devices_per_node = $ranks/; s/^steps .*/steps = $steps/
    s/^checkpoint_every .*/checkpoint_every = 1000/; s/^log_every .*/log_every = 10/
    s/^directory .*/directory = \"$name\"/
    /^host_memory_gib/a profile = \"${profile#*=}\"" "$deck" > "$name.toml"
  id=$(sbatch --parsable --ntasks-per-node="$ranks" --output="$name.log" "$@" "$BRUME_REGRESSION_DIR/../jobs/slurm.sbatch" "$name.toml")
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
  [ -d "like-$ranks-$steps" ] || mpirun -n "$ranks" --oversubscribe "$BRUME" run "$name.toml" \
    --set output.directory="like-$ranks-$steps" > "like-$ranks-$steps.log" 2>&1
  [ "$(state "$name" "$steps")" = "$(state "like-$ranks-$steps" "$steps")" ] || fail "the end is not that of a job without signals"
  echo "$name: $(turns) turns more, the end is that of a job without signals"
}

for n in 2 4; do
  begin "signalled-$n" "$n" 3000
  for turn in 0 1 2 3 4; do
    in_turn "$turn"
    scancel --signal=USR1 "$id"
  done
  ends
  [ "$(grep -c 'stopped after .* of 3000 steps' "$name.log")" -eq 5 ] || fail "five signals did not stop it five times"
done

begin killed 2 3000
for _ in $(seq 600); do [ ! -d killed/checkpoints/step-1000 ] || break; sleep 0.1; done
kill -9 "$(pgrep -n -f 'brume run killed.toml')"
in_turn 1
ends

# The signals come to the template's shell, to srun and to the ranks.
begin full 2 3000
in_turn 0
scancel --full --signal=USR1 "$id"
in_turn 1
ends

# What is cancelled stays so, with a checkpoint of the last step.
begin cancelled 2 100000
in_turn 0
scancel "$id"
for _ in $(seq 600); do [ -n "$(squeue -h)" ] || break; sleep 0.1; done
stopped=$(sed -n 's/^stopped after \([0-9]*\) of.*/\1/p' cancelled.log)
[ -f "cancelled/checkpoints/step-$stopped/manifest.json" ] || fail "no checkpoint of the last step '$stopped'"
[ -z "$(squeue -h)" ] || fail "a cancelled job went on"

# The limit of one minute: a signal ahead of it, or none, where the job knows its end.
begin warned 2 40000 --time=1 --signal=USR1@40
ends
[ "$(turns)" -ge 1 ] || fail "40000 steps took less than the limit"
begin limited 2 40000 --time=1 --signal=CONT@20
ends
[ "$(turns)" -ge 1 ] || fail "40000 steps took less than the limit"
