#!/bin/sh
# Token files of other programs, and tokens of 32 bits: the same tokens train to the same losses whatever
# file they lie in, and a vocabulary beyond 16 bits trains. Isolated documents, and several files.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | grep -oE '[0-9]+\.[0-9]+'; }
complain() { echo "$1"; exit 1; }

# Without the prompts of a file that is in the other folders, which are no targets: other programs' files do not say that.
"$BRUME" import tokens "$BRUME_REGRESSION_DIR/unit" "$BRUME_REGRESSION_DIR/mpi" "$BRUME_REGRESSION_DIR/fault" -o .

# The tokens without the header, and without the ends of documents behind them.
tail -c +65 train.tok | head -c $((2 * $(od -An -t u8 -j 24 -N 8 train.tok))) > bare.bin
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

# Documents alone, and files that are mixed: both go on where they were stopped, and only as they were.
isolated() { tiny_job --set output.directory=alone --set data.documents=isolate "$@"; }
isolated --steps 4 && isolated --steps 8
tiny_job --set output.directory=alone8 --set data.documents=isolate --steps 8
[ "$(losses alone)" = "$(losses alone8)" ] || complain "isolated documents do not go on"
refused 'was trained on other data, or in another order' --set output.directory=alone
refused 'bare.u16: does not say where its documents end' --set data.train=bare.u16 --set data.documents=isolate
refused 'bare.u16: has neither data.begin_token = -1 nor data.end_token = 255' --set data.train=bare.u16 \
  --set data.documents=isolate --set data.end_token=255
# Each line a document, of which the file says nothing.
lines() { tiny_job --set output.directory=lines --set data.train=bare.u16 --set data.documents=isolate "$@"; }
lines --set data.end_token=10 --steps 4
[ "$(losses lines)" != "$(losses alone8 | head -4)" ] || complain "lines are no documents"
refused 'was trained on other data, or in another order' --set output.directory=lines --set data.train=bare.u16 \
  --set data.documents=isolate --set data.end_token=32
# The seed decides which file of several a sample is of, in any order.
mixed() {
  tiny_job --set data.order=sequential --set data.train= --set 'data.files=["train.tok", "valid.tok"]' --set 'data.mixture=[1.0, 3.0]' "$@"
}
mixed --set output.directory=mixed --steps 4 && mixed --set output.directory=mixed --steps 8
mixed --set output.directory=mixed8 --steps 8
[ "$(losses mixed)" = "$(losses mixed8)" ] || complain "mixed files do not go on"
code=0
mixed --set output.directory=mixed8 --steps 9 --set training.seed=2 > log 2>&1 || code=$?
[ "$code" -eq 2 ] && grep -q 'was trained on other data, or in another order' log ||
  { cat log; complain "a mixture goes on with another seed: exit code $code"; }

# More files than the soft limit of open ones allows are read, more than the hard one are refused with the remedy.
mkdir many
for i in $(seq 300); do ln -s ../train.tok many/$i.tok; done
files="data.files=[$(for i in $(seq 300); do printf '"many/%s.tok", ' "$i"; done)]"
(ulimit -Sn 256 && tiny_job --dry-run --set output.directory=many/run --set data.train= --set "$files") > log 2>&1 ||
  { cat log; complain "files beyond the soft limit are refused"; }
(ulimit -n 256 && refused 'Raise the limit by ulimit -n' --set data.train= --set "$files")

# What one job read of a long file the next one trusts until the file is written to.
export XDG_CACHE_HOME=$PWD/cache
head -c 3000000 /dev/zero > long.u16
checksum() {
  tiny_job --dry-run -v --set output.directory=long --set data.train=long.u16 > log 2>&1 || { cat log; exit 1; }
  grep -o 'data: 1500000 tokens, checksum [0-9a-f]*' log
}
first=$(checksum)
[ "$(wc -l < cache/brume/tokens)" -eq 1 ] || complain "not each long file was kept, and no other"
sed -i 's/^[0-9a-f]*/00000000000000ff/' cache/brume/tokens
[ "$(checksum)" = 'data: 1500000 tokens, checksum 00000000000000ff' ] || complain "a known file was read again"
touch long.u16
[ "$(checksum)" = "$first" ] || complain "a file that was written to was not read"
