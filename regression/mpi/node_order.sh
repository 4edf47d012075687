#!/bin/sh
# One machine that passes for four nodes, of which two exchange messages slowly: the plan that is searched keeps off
# their link and says so, and trains with the bits that it has in the cluster's order, also resumed on other nodes.
set -eu
. "$BRUME_REGRESSION_DIR/tiny_job.sh"
fail() { echo "$1"; cat said; exit 1; }
losses() { h5dump -y -m %.17g -d /steps/loss "$1/run.h5" | sed -n '/DATA/,/}/p' | grep -E '[0-9]'; }
same() { [ "$(losses "$1")" = "$(losses "$2")" ] && [ "$(state "$1" 12)" = "$(state "$2" 12)" ] || fail "$1 and $2 differ"; }
sed 's/^ranks_per_node   = 4/ranks_per_node   = 1/' "${profile#*=}" > fast.toml
{ cat fast.toml; printf '\n[[slow_pairs]]\nfirst = 0\nsecond = 1\ntimes = 20.0\n'; } > slow.toml
{ echo 'hosts = ["a", "b", "c", "d"]'; cat slow.toml; } > elsewhere.toml
nodes='--set cluster.nodes=4 --set cluster.devices_per_node=1 --set search.stages=[4]'

"$BRUME" plan "$deck" --set cluster.profile=slow.toml $nodes --explain -o ordered.toml 2> said
grep -q '^node_order *= \[0, 2, 1, 3\]$' ordered.toml || fail "another order"
grep -q '; on nodes 0, 2, 1, 3$' said || fail "the order is not said"
grep -q '^why     without an order of nodes: .* (+[0-9]' said || fail "its gain is not said"
grep -q '^slowest link between nodes: of 0 and 1, 20 times as long as most' said || fail "the slowest link is not said"
"$BRUME" plan "$deck" --set cluster.profile=fast.toml $nodes --explain -o plain.toml 2> said
grep -q 'on nodes\|order of nodes\|slowest link' said plain.toml && fail "nodes are said that are all alike"
# Between other nodes the profile knows of no slow links.
tiny_job --set cluster.profile=elsewhere.toml $nodes --dry-run 2> said
grep -q 'measured on other nodes, and is left out' said && ! grep -q 'on nodes 0, 2' said || fail "nodes of another job"

# Nobody may know from the bits which rank was where.
sed '/^node_order/d' ordered.toml > unordered.toml
tiny_job --set cluster.profile=slow.toml $nodes --plan unordered.toml --set output.directory=whole
sed 's/^node_order.*/node_order = [3, 1, 0, 2]/' ordered.toml > other.toml
tiny_job --set cluster.profile=slow.toml $nodes --plan other.toml --set output.directory=other --steps 5
tiny_job --set cluster.profile=slow.toml $nodes --set output.directory=other
same whole other
tiny_job --set cluster.profile=slow.toml $nodes --plan ordered.toml --set output.directory=one --steps 5
tiny_job --set output.directory=one
same whole one
