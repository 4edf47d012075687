# To be sourced: two_groups <name> <name> writes deck.toml, the tiny deck on two groups of two ranks whose profiles
# are <name>.toml, from $decks.
two_groups() {
  awk '/^\[cluster\]/ { skip = 1 } /^\[search\]/ { skip = 0 } !skip' "$decks/tiny.toml" > deck.toml
  for name in "$@"; do cat >> deck.toml << EOT
[[cluster.groups]]
name             = "$name"
devices_per_node = 2
memory_gib       = 0.01
host_memory_gib  = 0.1
profile          = "$name.toml"
EOT
  done
  cat >> deck.toml << EOT
[[cluster.links]]
between   = ["$1", "$2"]
gib_per_s = 0.5
latency_s = 1e-4
EOT
}
