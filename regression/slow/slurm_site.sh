# To be sourced after tiny_job.sh: `start_slurm NODE...` starts a Slurm of which this one machine passes for all nodes,
# of four cores each; a NODE is a name, and what else the configuration says of it. It ends with the script.
command -v slurmctld > /dev/null && command -v slurmd > /dev/null && [ "$(id -u)" -eq 0 ] ||
  { echo "skipped: needs Slurm's daemons (make deps-slurm) and root"; exit 77; }

end_slurm() {
  scancel --user=root 2> /dev/null || true
  cat ./*.pid 2> /dev/null | while read -r daemon; do kill "$daemon" 2> /dev/null || true; done
  sleep 1
  rm -rf "$work"
}
idle() { [ "$(sinfo -hN -t idle 2> /dev/null | wc -l)" -eq "$1" ]; }

start_slurm() {
  trap 'cd "$work"; end_slurm' EXIT
  mkdir state log gpus
  touch gpus/0 gpus/1
  echo "Name=gpu File=$work/gpus/[0-1]" > gres.conf
  host=$(hostname -s)
  # A requeued job is held until its credential has expired: 120 s unless told.
  cat > slurm.conf << CONF
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
SlurmctldPort=18917
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
TmpFS=$work/tmp-%n
SlurmctldPidFile=$work/ctld.pid
SlurmdPidFile=$work/d-%n.pid
SlurmctldLogFile=$work/log/ctld.log
SlurmdLogFile=$work/log/d-%n.log
SlurmdParameters=config_overrides
KillWait=30
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2
MpiParams=ports=19000-19099
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
  port=18921
  for node in "$@"; do
    name=${node%% *}
    mkdir "spool-$name" "tmp-$name"
    echo "NodeName=$name NodeHostname=$host NodeAddr=127.0.0.1 Port=$port CPUs=4 RealMemory=2000${node#"$name"}" >> slurm.conf
    port=$((port + 1))
  done
  export SLURM_CONF="$work/slurm.conf" OMPI_MCA_mpi_yield_when_idle=1
  slurmctld -f "$SLURM_CONF"
  for node in "$@"; do slurmd -N "${node%% *}" -f "$SLURM_CONF"; done
  for _ in $(seq 60); do idle $# && return; sleep 1; done
  cat log/*
  echo "the nodes are not idle"
  exit 1
}
