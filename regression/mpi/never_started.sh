#!/bin/sh
# A rank that stands still before MPI has started ends the job with 5, after most of a minute in which nobody needs a core.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
code=0
mpirun -n 3 --oversubscribe "$BRUME" run "$deck" : -n 1 sh -c 'kill -STOP $$' > log 2>&1 || code=$?
# Open MPI 4.1's mpirun may crash when it ends such a job.
{ [ "$code" -eq 5 ] || [ "$code" -eq 139 ]; } && [ "$(grep -c 'brume:' log)" -eq 1 ] && grep -q 'MPI has not started within 4.*: a rank was stopped' log ||
  { cat log; echo "exit code $code"; exit 1; }
