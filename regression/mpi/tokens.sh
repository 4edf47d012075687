#!/bin/sh
# Token files of other programs, and tokens of 32 bits: the same tokens train to the same losses whatever
# file they lie in, and a vocabulary beyond 16 bits trains.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | grep -oE '[0-9]+\.[0-9]+'; }
complain() { echo "$1"; exit 1; }

tail -c +65 train.tok > bare.bin
ln -s bare.bin bare.u16
tiny_job --set output.directory=ours --steps 4
tiny_job --set output.directory=theirs --set data.train=bare.u16 --steps 4
[ "$(losses ours)" = "$(losses theirs)" ] || complain "the same tokens train to other losses"

refused() { # words, flags...
  words=$1; shift
  if tiny_job --set output.directory=refused --steps 4 "$@" > log 2>&1; then complain "nothing was refused: $*"; fi
  grep -q "$words" log || { cat log; complain "it does not say: $words"; }
}
refused 'bare.bin: is no token file' --set data.train=bare.bin
refused 'larger than model.vocab_size = 100' --set data.train=bare.u16 --set model.vocab_size=100

# Tokens 128255, 128254, 7, again and again.
printf '\377\364\001\000\376\364\001\000\007\000\000\000' > wide.u32
for i in 1 2 3 4 5 6 7 8 9 10; do cat wide.u32 wide.u32 > twice; mv twice wide.u32; done
tiny_job --set output.directory=wide --set model.vocab_size=128256 --set data.train=wide.u32 --set data.valid=wide.u32 \
  --set cluster.memory_gib=1 --set cluster.host_memory_gib=1 --steps 8
losses wide > wide.losses
awk 'NR == 1 {first = $1} END {exit !($1 < first - 0.1)}' wide.losses ||
  { cat wide.losses; complain "a wide vocabulary does not learn"; }
