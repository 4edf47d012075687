#!/bin/bash
# Trains a deck without a batch system, again and again until it is done.
#   jobs/mpirun.sh my.toml 4
#   jobs/mpirun.sh my.toml 4 --oversubscribe     # further words are mpirun's
# TERM, INT or USR1 to this script end the training with a checkpoint and exit code 75.
set -uo pipefail

deck=${1:?usage: jobs/mpirun.sh DECK RANKS [MPIRUN OPTION...]}
ranks=${2:?usage: jobs/mpirun.sh DECK RANKS [MPIRUN OPTION...]}
shift 2
brume=${BRUME:-build/brume}
command -v "$brume" > /dev/null || { echo "no program $brume: name it by BRUME=" >&2; exit 2; }

# -q: mpirun adds no lines of its own to what brume says when it ends with an error.
# mpirun passes USR1 on to all ranks at once. TERM and INT it would pass on late, and kill the ranks a second later.
stopping=
stop() {
  stopping=yes
  [ -z "${job-}" ] || kill -USR1 "$job" 2> /dev/null
}
trap stop TERM INT USR1
set -m  # mpirun in a process group of its own: Ctrl-C reaches this script only

while true; do
  mpirun -q -n "$ranks" "$@" "$brume" run "$deck" < /dev/null &
  job=$!
  # A signal to this script ends a wait before its time.
  while true; do
    wait "$job"
    code=$?
    kill -0 "$job" 2> /dev/null || break
  done
  # 5: a rank fell silent; above 128: one was killed, often for want of memory. brume itself refuses
  # a fourth start from the same checkpoint.
  case $code in
    5 | 12[89] | 1[3-9][0-9]) [ -z "$stopping" ] || exit "$code" ;;
    0 | 2 | 3 | 4 | 6 | 7[0156]) exit "$code" ;;
    *)
      echo "mpirun ended with $code, which brume never does: fewer than $ranks slots (--oversubscribe)," \
        "root (OMPI_ALLOW_RUN_AS_ROOT), or no program $brume? mpirun -n $ranks $* $brume --version says more" >&2
      exit "$code"
      ;;
  esac
  echo "a rank was lost (exit code $code): resuming from the last checkpoint"
  sleep 5 &
  wait $!
done
