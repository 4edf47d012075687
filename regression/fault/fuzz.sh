#!/bin/sh
# fuzz.sh PROGRAM SECONDS JOBS: runs libFuzzer on each kind of file. An input that crashes, leaks, or takes more than 5 s
# or 1 GiB under sanitizers is kept in fuzz-KIND/ beside the program, and named.
set -eu
[ -x "$1" ] || { echo "skipped: there is no $1, which \`make fuzz\` builds with Clang"; exit 77; }
program=$(realpath "$1") seconds=$2 jobs=$3
cd "$(dirname "$program")"
one() {
  mkdir -p "fuzz-$1/corpus"
  code=0
  BRUME_KIND=$1 "$program" "fuzz-$1/corpus" -max_total_time="$seconds" -timeout=5 -rss_limit_mb=1024 \
    -artifact_prefix="fuzz-$1/" > "fuzz-$1/log" 2>&1 || code=$?
  [ "$code" -eq 0 ] && echo "$1: $(grep -a '^Done' "fuzz-$1/log")" || { tail -n 40 "fuzz-$1/log"; echo "$1: FAILED, see $PWD/fuzz-$1"; exit 1; }
}
if [ "${4-}" ]; then
  one "$4"
else
  kinds=$("$program")  # a pipe would hide that it failed
  echo "$kinds" | xargs -P "$jobs" -I {} "$(cd - > /dev/null && realpath "$0")" "$program" "$seconds" "$jobs" {}
fi
