#!/bin/bash
# Trains a deck without a batch system, again and again until it is done.
#   jobs/mpirun.sh my.toml 4
set -uo pipefail

deck=${1:?usage: jobs/mpirun.sh DECK RANKS}
ranks=${2:?usage: jobs/mpirun.sh DECK RANKS}
brume=${BRUME:-build/brume}

# By default mpirun kills one second after SIGTERM; a checkpoint may take longer.
while true; do
  mpirun -n "$ranks" --mca odls_base_sigkill_timeout 60 "$brume" run "$deck"
  code=$?
  [ "$code" -eq 5 ] || exit "$code"
  echo "a rank was lost: resuming from the last checkpoint"
  sleep 5
done
