# To be sourced: the losses of runs that tiny_job made, and whether two runs have the same of each step.
fail() { echo "$*"; exit 1; }
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | sed -n '/DATA/,/}/p' | grep -oE '[0-9]+\.[0-9]+'; }
same() { # <run> <run> <most>: losses within it, step by step
  losses "$1" > a
  losses "$2" > b
  paste a b | awk -v most="$3" '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) { print "differs:", $0; bad = 1 } n++ }
    END { exit bad || n < 12 }' || fail "$1 and $2 differ"
}
