#!/bin/sh
# The job template on a real Slurm of one machine: a signal before the limit, a checkpoint, exit 75, requeue,
# resume; in the next turn a rank is killed, requeue, resume. Skips where Slurm is not installed or we are not root.
# Slurm holds a requeued job for two minutes.
set -eu
command -v slurmctld > /dev/null && command -v slurmd > /dev/null && [ "$(id -u)" -eq 0 ] || exit 77
work=$(mktemp -d)
end() {
  pkill -f "slurm(ctld|d) -f $work/slurm.conf" || true
  sleep 1
  rm -rf "$work"
}
trap end EXIT
cd "$work"
mkdir state spool log
host=$(hostname -s)
cat > slurm.conf <<CONF
ClusterName=brume
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
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
RequeueExit=75
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2
MpiParams=ports=18900-18999
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
export SLURM_CONF="$work/slurm.conf"
slurmctld -f "$SLURM_CONF"
slurmd -f "$SLURM_CONF"
for _ in $(seq 30); do sinfo -h 2> /dev/null | grep -q idle && break; sleep 1; done

"$BRUME" import tokens "$BRUME_REGRESSION_DIR" -o .
sed 's/devices_per_node = 4/devices_per_node = 2/; s/steps        = 12 /steps        = 4000/
  s/checkpoint_every = 4 /checkpoint_every = 1000/; s/log_every        = 4/log_every        = 100/' \
  "$BRUME_REGRESSION_DIR/decks/tiny.toml" > deck.toml
echo "profile = \"$BRUME_REGRESSION_DIR/decks/profile.toml\"" > profile.key
sed -i '/^host_memory_gib/r profile.key' deck.toml

# The signal comes 40 s before the limit of one minute.
sbatch --ntasks-per-node=2 --time=1 --signal=USR1@40 --output=job.log "$BRUME_REGRESSION_DIR/../jobs/slurm.sbatch" deck.toml
killed=
for _ in $(seq 1500); do
  if [ -z "$killed" ] && grep -q 'resuming from' job.log 2> /dev/null && tail -n 1 job.log | grep -q 'e-[0-9][0-9] .* MiB$'; then
    killed=$(pgrep -n -f 'brume run deck.toml')
    kill -9 "$killed"
  fi
  [ -f run/checkpoints/step-4000/manifest.json ] && [ -z "$(squeue -h)" ] && break
  sleep 0.5
done
cat job.log
grep -q 'stopped after .* of 4000 steps' job.log || { echo "the signal did not stop the job"; exit 1; }
[ -n "$killed" ] || { echo "the job did not resume"; exit 1; }
[ "$(grep -c 'resuming from .* after [0-9]* steps' job.log)" -ge 2 ] || { echo "the job did not go on after a killed rank"; exit 1; }
[ -f run/checkpoints/step-4000/manifest.json ] || { echo "the job did not end"; exit 1; }
