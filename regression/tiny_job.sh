# To be sourced: goes to a fresh folder with tokens in it; `tiny_job` runs the tiny deck there on four ranks, and
# `a_step` matches the lines that a training writes about its steps (the plan's tables have no learning rate).
a_step='e-[0-9][0-9] .* MiB$'
deck=$BRUME_REGRESSION_DIR/decks/tiny.toml
profile=cluster.profile=$BRUME_REGRESSION_DIR/decks/profile.toml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$BRUME" import tokens "$BRUME_REGRESSION_DIR" -o .
tiny_job() { mpirun -n 4 --oversubscribe "$BRUME" run "$deck" --set "$profile" "$@"; }
on_host() { [ -z "${BRUME_ON_DEVICE-}" ]; }
