#!/bin/sh
# Everything that a run prints, by its shape, against reviewed texts (shape.sh), and what a person sees while it goes on.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
. "$BRUME_REGRESSION_DIR/golden/shape.sh"
said() { ended 0 "$@"; }
job="mpirun -n 4 --oversubscribe $BRUME run tiny.toml --set cluster.profile=profile.toml"
begin() { $job --set output.directory=begun --steps 5 > log 2>&1 || { cat log; exit 1; }; }

said run $job --resume none
# The last width's terminal has shown each step in a line that goes.
tr '\r' '\n' < raw | grep -E '^\[=*> *\] [0-9]+/12  [0-9]+:[0-9]+:[0-9]+ left *$' > lines
[ "$(sed 's/.* \([0-9]*\)\/12.*/\1/' lines | sort -un | tr '\n' ' ')" = "1 2 3 4 5 6 7 8 9 10 11 12 " ] ||
  { cat lines; echo "steps are missing in the line of progress"; exit 1; }
begin
said resumed $job --set output.directory=begun-now --set training.optimizer.lr=1e-3
said finished $job
said report "$BRUME" report run --text
said eval "$BRUME" eval run --sequences 8
said plan "$BRUME" plan tiny.toml --set cluster.profile=profile.toml --top 4 -o plan.toml
said generation "$BRUME" plan tiny.toml --set cluster.profile=profile.toml --for generation --top 2 -o generation.toml
said analyze "$BRUME" analyze tiny.toml --set cluster.profile=profile.toml --plan plan.toml
said simulate "$BRUME" simulate tiny.toml --set cluster.profile=profile.toml --plan plan.toml
said sweep "$BRUME" plan tiny.toml --set cluster.profile=profile.toml --sweep cluster.devices_per_node=1,2,4
compare_printed printed
