# To be sourced: plan <knobs> <layers> <group> <dp> <tp> ... prints a plan of such stages for the tiny deck, with the
# lines of <knobs> in each; the group "-" is that of a cluster that has one only.
plan() {
  knobs=$1
  shift
  printf 'version = 1\nglobal_batch = 8\nmicrobatches = 4\n'
  first=0
  while [ $# -gt 0 ]; do
    printf '[[stages]]\nfirst_layer = %s\nlayers = %s\ndevices_per_node = %s\n' $first "$1" $(($3 * $4))
    printf 'microbatch = %s\ndp = %s\ntp = %s\n%s\n' $((2 / $3)) "$3" "$4" "$knobs"
    [ "$2" = - ] || printf 'group = "%s"\n' "$2"
    first=$((first + $1))
    shift 4
  done
}
