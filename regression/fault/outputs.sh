#!/bin/sh
# What a person names as output is written where it is: a pipe stays a pipe and a link a link, and a full
# disk leaves the old file and nothing beside it.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
complain() { echo "$*"; exit 1; }
umask 022
"$BRUME" plan "$deck" --set "$profile" -o plan.toml

cat > times.json << EOF
{"entries": [{"op": "mist.modules.fused_dense.fused_dense_func", "source": "a", "fwd_mean_s": 1e-3, "bwd_mean_s": 2e-3,
  "args": {"x": {"shape": [2, 32, 64]}, "weight": {"shape": [192, 64]},
           "process_group": {"process_group_world_size": 4, "rank": 0}}}]}
EOF
mkfifo pipe
through_pipe() { # <pattern> <command...>: the command's output to `pipe` has the pattern
  pattern=$1
  shift
  cat pipe > got &
  reader=$!
  timeout 60 "$@" > log 2>&1 || { cat log; kill $reader; complain "$* failed"; }
  [ -p pipe ] || { kill $reader; complain "$* replaced the pipe"; }
  wait $reader
  grep -q "$pattern" got || complain "$* wrote something else into the pipe"
}
through_pipe '^global_batch' "$BRUME" plan "$deck" --set "$profile" -o pipe
through_pipe traceEvents "$BRUME" simulate "$deck" --set "$profile" --plan plan.toml --trace pipe
through_pipe '^flops_per_s' "$BRUME" import mist-profile times.json -o pipe

mkdir data
ln -s ../elsewhere.tok data/train.tok
"$BRUME" import tokens "$deck" -o data
[ -L data/train.tok ] && [ -s elsewhere.tok ] || complain "import tokens replaced a link"
[ "$(stat -c %a plan.toml elsewhere.tok data/valid.tok | sort -u)" = 640 ] || { ls -l . data; complain "other rights than 640"; }

# A limit of the process stands for a full disk.
full() { # <file> <command...>: it would write the file in the folder full
  file=$1
  shift
  for old in '' old; do
    rm -rf full
    mkdir full
    [ -z "$old" ] || echo $old > "full/$file"
    ls -l full > before
    code=0
    (ulimit -f 0 && exec "$@" > /dev/null 2> /dev/null) || code=$?
    [ "$code" -eq 6 ] || complain "$* on a full disk: exit code $code, expected 6"
    ls -l full > after
    cmp before after || complain "$* on a full disk changed the folder: $(cat after)"
  done
}
full plan.toml "$BRUME" plan "$deck" --set "$profile" -o full/plan.toml
full trace.json "$BRUME" simulate "$deck" --set "$profile" --plan plan.toml --trace full/trace.json
full times.toml "$BRUME" import mist-profile times.json -o full/times.toml
full train.tok "$BRUME" import tokens "$deck" -o full
