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
export PATH=$bundle/bin:$PATH LD_LIBRARY_PATH=$(_brume_cuda | sed 's/^://')${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Open MPI and PMIx look for their plugins where they were built unless they are told, as bin/mpirun does.
export OPAL_PREFIX=$bundle/libexec/openmpi PMIX_INSTALL_PREFIX=$bundle/libexec/openmpi/pmix
# Shared memory and TCP. A rank has threads for all its channels, so it is bound to no core.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_vader_single_copy_mechanism=none \
  OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mca_base_component_show_load_errors=0
unset -f _brume_cuda
