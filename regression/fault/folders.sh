#!/bin/sh
# Run directories that cannot be used end a job with exit code 6 before its first step, and one line that names the path.
# What happens to them while it trains: a limit of files' sizes and a disk that fills up end it with 6, a directory
# that is gone is made anew, tokens that are cut short are named.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
fail() { cat log; echo "$1"; exit 1; }
refused() { # <directory> <word of the message>
  code=0
  mpirun -n 2 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=2 --set output.directory="$1" > log 2>&1 || code=$?
  [ "$code" -eq 6 ] && [ "$(grep -c 'brume: ' log)" -eq 1 ] && grep -q "brume: .*$2" log || fail "'$1': exit code $code"
  ! grep -q "$a_step" log || fail "'$1': the job began to train"
}
echo text > file
ln -s nowhere/at/all dangling
long=$(printf '%300s' x | tr ' ' x)
refused file 'file'
refused file/run 'file'
refused dangling 'dangling'
refused "$long" 'File name too long'

start() { # <directory> <flag...>: a job that trains
  directory=$1
  shift
  mpirun -n 2 --oversubscribe "$BRUME" run "$deck" --set "$profile" --set cluster.devices_per_node=2 --set output.directory="$directory" \
    --set training.steps=100000 --set output.checkpoint_every=50 --set output.trace=false "$@" > log 2>&1 &
  job=$!
  for _ in $(seq 600); do
    if [ -d "$directory/checkpoints/step-50" ]; then return; fi
    sleep 0.05
  done
  fail "'$directory': no checkpoint was written"
}
ends_with() { # <code> <words of the message>
  code=0
  wait "$job" || code=$?
  [ "$code" -eq "$1" ] || fail "expected exit code $1, got $code"
  grep -q "brume: .*$2" log || fail "nobody said '$2'"
}

start limited
for rank in $(pgrep -P "$job"); do prlimit --pid "$rank" --fsize=4096; done
ends_with 6 'limited/.*File too large'

if [ "$(id -u)" -eq 0 ] && mkdir disk && mount -t tmpfs -o size=16m none disk 2> /dev/null; then
  trap 'umount -l "$work/disk"; rm -rf "$work"' EXIT
  start disk/run
  cat /dev/zero > disk/rest 2> /dev/null || true
  ends_with 6 'disk/run/.*No space left on device'
  mount -o remount,ro disk
  refused disk/new 'Read-only file system'
fi

start gone --set training.steps=400
until rm -rf gone 2> /dev/null; do :; done  # a checkpoint may be on its way into it
code=0
wait "$job" || code=$?
[ "$code" -eq 0 ] && [ -f gone/checkpoints/step-400/manifest.json ] ||
  fail "a directory that was removed: exit code $code"

cp train.tok cut.tok
start cut --set data.train=cut.tok
truncate -s 4096 cut.tok
ends_with 6 'cut.tok'
