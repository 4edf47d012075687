#!/bin/sh
# A disk that breaks while tasks write to it ends the job with exit code 6, and a rank says in one line in which
# step and task, and why.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
mkdir scratch
job() { # <call that fails>
  code=0
  mpirun -n 4 --oversubscribe -x LD_PRELOAD="$BRUME_FAILING_FILES" -x BRUME_FAILING_FOLDER="$(realpath scratch)" \
    -x BRUME_FAILING_CALL="$1" -x BRUME_FAILING_STAYS=1 "$BRUME" run "$deck" --set "$profile" \
    --plan "$BRUME_REGRESSION_DIR/fault/on_disk.toml" --set cluster.disk_gib=0.1 --set cluster.scratch=scratch \
    --set output.directory="run-$1" > log 2>&1 || code=$?
  cat log
}
job 0
calls=$(sed -n 's/^calls of files: //p' log | sort -n | head -n 1)
[ "$code" -eq 0 ] && [ "$calls" -gt 20 ] || { echo "exit code $code, $calls calls"; exit 1; }
job $((calls * 3 / 4))
[ "$code" -eq 6 ] || { echo "expected exit code 6, got $code"; exit 1; }
grep -qE 'brume: step [0-9]+: disk: .*: cannot write .* scratch file .*: Input/output error' log ||
  { echo "nobody said which task failed, and why"; exit 1; }
