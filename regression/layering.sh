#!/bin/sh
# Fails when a module includes one that its line in src/CMakeLists.txt does not name,
# or when a package is entered through another door than its own.
set -eu
cd "$1"
status=0
complain() { echo "layering: $*"; status=1; }

modules=$(sed -n 's/^brume_module(\([a-z]*\).*/\1/p' src/CMakeLists.txt)
[ "$(echo "$modules" | wc -l)" -ge 10 ] || complain "the module table was not found"
for module in $modules; do
  may=$(sed -n "s/^brume_module($module  *USES  *\([a-z ]*[a-z]\).*/\1/p" src/CMakeLists.txt)
  for used in $(grep -rhoE '^#include "[a-z]+/' "src/$module" "inc/$module" 2>/dev/null |
                sed 's/#include "//; s|/||' | sort -u); do
    [ "$used" = "$module" ] && continue
    case " $may " in
      *" $used "*) ;;
      *) complain "$module includes $used, which its line does not name" ;;
    esac
  done
done

# door <header pattern> <modules that may include it>
door() {
  for file in $(grep -rlE "#include [<\"]($1)" src inc || true); do
    module=$(echo "$file" | cut -d/ -f2)
    case " $2 " in
      *" $module "*) ;;
      *) complain "$file includes $1, which belongs to: $2" ;;
    esac
  done
}
door 'glpk\.h' 'tuner'
door 'mpi\.h' 'comm'
door 'nccl\.h' 'comm'
door 'hdf5\.h' 'io'
door 'Kokkos_' 'kernels'
door '(oneapi/dnnl|dnnl)' 'kernels'
door 'cublas' 'kernels'
door 'cuda_runtime' 'device comm kernels'
door 'toml\+\+' 'deck'
door 'CLI/' 'app'
door 'archive\.h' 'interop'
exit $status
