#!/bin/sh
# A job whose ranks hold several stages: the plan is analyzed and simulated, the losses are those of another plan's
# to 1e-5, stopped and resumed they have the same bits, and another plan goes on from its checkpoint.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/plans.sh"
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | sed -n '/DATA/,/}/p' | grep -E '[0-9]'; }
alike() {
  losses "$1" > a
  losses "$2" > b
  paste a b | tr -d ',' | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-5) { print "differs:", $0; bad = 1 } n++ }
    END { if (n < 1) bad = 1; exit bad }'
}

{ echo 'virtual_stages = 2'; plan 'zero_level = 1
optim_offload_ratio = 0.5
act_offload_ratio = 0.5' 1 - 2 1 1 - 2 1 1 - 2 1 1 - 2 1; } > interleaved.toml
plan '' 4 - 2 2 > other.toml
"$BRUME" analyze "$deck" --set "$profile" --plan interleaved.toml --explain > said
grep -q 'stages i and i + 2 lie on the same devices' said || { cat said; exit 1; }
"$BRUME" simulate "$deck" --set "$profile" --plan interleaved.toml > said

tiny_job --set output.directory=whole --plan interleaved.toml
tiny_job --set output.directory=parts --plan interleaved.toml --steps 5
tiny_job --set output.directory=parts
[ "$(losses whole)" = "$(losses parts)" ] || { echo "resumed losses differ"; losses whole; losses parts; exit 1; }
tiny_job --set output.directory=one --plan other.toml
alike whole one
tiny_job --set output.directory=both --plan interleaved.toml --steps 5
tiny_job --set output.directory=both --plan other.toml
alike whole both
"$BRUME" report whole --text > page.txt
grep -q '^ *0 measured ' page.txt || { cat page.txt; exit 1; }

# A mesh of its own for a chunk is refused by name.
sed 's/^zero_level = 1$/zero_level = 0/;t done;b;:done;n;:rest;n;b rest' interleaved.toml > wrong.toml
cmp -s interleaved.toml wrong.toml && exit 1
"$BRUME" analyze "$deck" --set "$profile" --plan wrong.toml 2> said && exit 1
grep -q 'lies on the devices of stage 0, so' said || { cat said; exit 1; }
