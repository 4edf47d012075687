#!/bin/sh
# A limit of processes (ulimit -u) that is reached when MPI starts, when its watchers, the engine's channels or a
# checkpoint's writer do: the job ends with 4 and one line that says why, or trains.
set -eu
[ "$(id -u)" -eq 0 ] && command -v setpriv > /dev/null ||
  { echo "skipped: root has no such limit, and only root can be somebody else"; exit 77; }
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
uid=$((61000 + $$ % 1000))  # of somebody who has no other processes
chmod 755 "$work"
chmod 644 ./*.tok
mkdir home
chown $uid home

# limited <number>: the job with so many threads and processes of this user; sets `code`.
limited() {
  rm -rf home/run
  code=0
  HOME=$work/home TMPDIR=$work/home timeout 60 setpriv --reuid=$uid --regid=$uid --clear-groups \
    mpirun -n 2 --oversubscribe prlimit --nproc="$1" "$BRUME" run "$deck" --set "$profile" --set output.directory=home/run \
    --set cluster.devices_per_node=2 > log 2>&1 || code=$?
}
limited 1000
[ "$code" -eq 0 ] || { cat log; echo "without a limit: exit code $code"; exit 1; }
failed=0
for number in 6 11 14 19 25 30; do
  limited $number
  # Both ranks may want the last thread while MPI starts, which says so itself.
  if [ "$code" -eq 1 ] && grep -q 'pmix_progress_thread_start failed' log; then limited $number; fi
  [ "$code" -ne 0 ] || continue
  failed=$((failed + 1))
  [ "$code" -eq 4 ] && [ "$(grep -c 'brume:' log)" -eq 1 ] && grep -q 'brume: a thread could not be started.*(ulimit -u)' log ||
    { cat log; echo "$number processes: exit code $code"; exit 1; }
done
echo "$failed of 6 limits were reached"
[ "$failed" -gt 3 ]
