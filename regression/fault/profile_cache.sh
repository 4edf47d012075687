#!/bin/sh
# A cache of measured profiles that cannot be written costs a warning, and the plan is made all the same.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
echo text > file
XDG_CACHE_HOME=$PWD/file "$BRUME" plan "$deck" --set cluster.devices_per_node=1 --set 'search.microbatch=[8]' -o plan.toml > log 2>&1 ||
  { cat log; echo "no plan"; exit 1; }
grep -q "profile: not cached: $PWD/file: the directory cannot be made" log && grep -q '^global_batch' plan.toml && [ "$(cat file)" = text ] ||
  { cat log; echo "nobody said that the profile is not kept"; exit 1; }
