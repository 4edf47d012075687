# Where the bundle's programs and libraries are, to be sourced by bash: . brume-sm_90/environment.sh
# CUDA's libraries are taken from LD_LIBRARY_PATH (a module's, say), from beside PyTorch, or from where toolkits lie.
bundle=${BRUME_BUNDLE:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)}  # BRUME_BUNDLE: as it is seen by who will run it

_brume_cuda() {
  local beside_torch name folder
  beside_torch=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2> /dev/null)
  for name in $(sed -n 's/.*of CUDA: //p' "$bundle/manifest" 2> /dev/null); do
    for folder in ${LD_LIBRARY_PATH//:/ } "$beside_torch"/nvidia/*/lib /usr/local/cuda/lib64 /usr/local/cuda*/targets/x86_64-linux/lib \
      /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu; do
      [ -e "$folder/$name" ] && echo "$folder" && break
    done
  done | awk '!seen[$0]++' | sed 's/^/:/' | tr -d '\n'
}
# The compiler's libraries: those of the system where they are new enough, as other programs here load them.
_brume_newer() {
  local theirs
  theirs=$(ldconfig -p 2> /dev/null | awk '$1 == "libstdc++.so.6" { print $NF; exit }')
  [ -n "$theirs" ] && grep -q GLIBCXX_3.4.30 "$theirs" && ldconfig -p | grep -q libgomp.so.1 || echo ":$bundle/lib/newer"
}
export PATH=$bundle/bin:$PATH
export LD_LIBRARY_PATH=$bundle/lib$(_brume_newer)$(_brume_cuda)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Open MPI and PMIx look for their plugins where they were built unless they are told.
export OPAL_PREFIX=$bundle OPAL_EXEC_PREFIX=$bundle OPAL_BINDIR=$bundle/bin OPAL_LIBDIR=$bundle/lib OPAL_PKGLIBDIR=$bundle/lib/openmpi3 \
  OPAL_DATADIR=$bundle/share OPAL_PKGDATADIR=$bundle/share/openmpi OPAL_SYSCONFDIR=$bundle/etc/openmpi
export PMIX_INSTALL_PREFIX=$bundle PMIX_LIBDIR=$bundle/lib PMIX_PKGLIBDIR=$bundle/lib/pmix PMIX_DATADIR=$bundle/share \
  PMIX_PKGDATADIR=$bundle/share/pmix PMIX_SYSCONFDIR=$bundle/etc
# What came along: shared memory and TCP. A rank has threads for all its channels, so it is bound to no core.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_vader_single_copy_mechanism=none \
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mca_base_component_show_load_errors=0
# Without ssh it refuses to start even on one node, unless something stands in for it.
command -v ssh > /dev/null || export OMPI_MCA_plm_rsh_agent=$bundle/bin/orted
unset -f _brume_cuda _brume_newer
