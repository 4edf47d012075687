# To be sourced: goes to a fresh folder in which the tutorial's commands find what they name; `walk <heading>` writes those that
# stand below a heading of the tutorial into the file `walk`.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir build && ln -s "$BRUME" build/brume
ln -s "$BRUME_REGRESSION_DIR/../inputs" inputs
ln -s "$BRUME_REGRESSION_DIR/mpi" my-texts
export OMPI_MCA_rmaps_base_oversubscribe=1
fail() { echo "$*"; exit 1; }
walk() { # <heading> <least number of commands>
  awk -v heading="## $1" '/^## / { here = $0 == heading } /^```/ { output = !output }
    here && !output && sub(/^    /, "")' "$BRUME_REGRESSION_DIR/../inputs/tutorial.md" > walk
  [ "$(grep -c build/brume walk)" -ge "$2" ] || { cat walk; fail "the walk '$1' is gone from the tutorial"; }
}
