#!/usr/bin/env bash
# Builds Brume for NVIDIA devices, on a machine that needs to have none, and packs it with all that a bare Linux lacks.
# From the project's root:
#
#   jobs/gpu/build-bundle.sh KOKKOS [TEST...]     # KOKKOS: a clone, a bare one too, or a folder of its sources (4.6 or newer)
#
# It makes build-gpu/brume-sm_90.tar.xz. What is done already is not done again. Environment:
#   ARCH    what nvcc compiles for: 90 (H100, H200)
#   JOBS    compilations at a time (all cores)
set -euo pipefail
[ -f CMakeLists.txt ] && [ -d src/kernels/portable ] || { echo "start this from the project's root" >&2; exit 1; }
kokkos_source=${1:?usage: jobs/gpu/build-bundle.sh KOKKOS [TEST...]}
shift
tests=${*:-gpu_engine gpu_cublas gpu_streams gpu_communicators gpu_attention unit_matmul unit_float8_products unit_pointwise
  unit_layer_norm unit_attention unit_rms_norm unit_rope unit_activations unit_embedding unit_cross_entropy unit_adamw
  unit_narrow perf_kernels perf_step perf_overlap}
arch=${ARCH:-90} jobs=${JOBS:-$(nproc)}
here=$(cd "$(dirname "$0")" && pwd -P)
build=$(pwd -P)/build-gpu
started=$SECONDS
say() { printf '%4d s  %s\n' $((SECONDS - started)) "$*"; }
# logged LOG COMMAND...: its output goes into LOG, of which the end is shown where it fails
logged() {
  local log=$1
  shift
  "$@" > "$log" 2>&1 || { echo "failed: $*" >&2; tail -n 30 "$log" >&2; exit 1; }
}

mkdir -p "$build"
make deps-pack  # the packages that any build needs, and what packs it
nvcc=$(command -v nvcc) || { echo "no nvcc here: put the CUDA toolkit's bin into PATH" >&2; exit 1; }
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
generator=$(command -v ninja > /dev/null && echo "-G Ninja" || true)

# --- Kokkos with CUDA -------------------------------------------------------------------------------------------------
case $arch in
  80) name=AMPERE80 ;; 89) name=ADA89 ;; 90) name=HOPPER90 ;; 100) name=BLACKWELL100 ;;
  *) echo "ARCH=$arch: Kokkos's name for it is not known here" >&2; exit 1 ;;
esac
kokkos=$build/kokkos-$arch
if [ ! -f "$kokkos/installed" ]; then
  sources=$build/kokkos-source
  rm -rf "$sources" "$kokkos"
  mkdir -p "$sources"
  if git -C "$kokkos_source" cat-file -e HEAD:CMakeLists.txt 2> /dev/null; then
    git -C "$kokkos_source" archive HEAD | tar -x -C "$sources"
  else
    cp -r "$kokkos_source/." "$sources"
  fi
  # CUDA 13 asks for one argument more in two calls, of which versions up to 4.6 do not know.
  if [ "$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')" -ge 13 ]; then
    sed -i -e 's/return cudaGraphAddDependencies(graph, from, to, numDependencies);/return cudaGraphAddDependencies(graph, from, to, nullptr, numDependencies);/' \
      -e 's/return cudaMemPrefetchAsync(devPtr, count, dstDevice, m_stream);/return cudaMemPrefetchAsync(devPtr, count, cudaMemLocation{cudaMemLocationTypeDevice, dstDevice}, 0, m_stream);/' \
      "$sources"/core/src/Cuda/Kokkos_Cuda_Instance.?pp
  fi
  say "Kokkos: configuring and building"
  logged "$build/kokkos.log" cmake -S "$sources" -B "$build/kokkos-build" $generator -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$kokkos" -DKokkos_ENABLE_CUDA=ON "-DKokkos_ARCH_$name=ON" -DCMAKE_CXX_STANDARD=20 \
    -DKokkos_ENABLE_COMPILE_AS_CMAKE_LANGUAGE=ON -DKokkos_ENABLE_IMPL_MDSPAN=OFF -DKokkos_ENABLE_IMPL_VIEW_LEGACY=ON
  logged "$build/kokkos.log" cmake --build "$build/kokkos-build" -j "$jobs" --target install
  rm -rf "$sources" "$build/kokkos-build"
  touch "$kokkos/installed"
fi

# --- cuDNN's frontend, which is headers alone, where the toolkit has cuDNN 9 -------------------------------------------
cudnn=
if [ -f "$toolkit/include/cudnn_version.h" ]; then
  if [ ! -d "$build/cudnn/include" ]; then
    say "cuDNN's frontend: from its Python package"
    rm -rf "$build/cudnn" "$build/wheel"
    logged "$build/cudnn.log" pip download -q --no-deps --only-binary=:all: -d "$build/wheel" nvidia-cudnn-frontend==1.32.0
    logged "$build/cudnn.log" python3 -m zipfile -e "$build"/wheel/*.whl "$build/wheel/all"
    mkdir "$build/cudnn"
    mv "$build/wheel/all/include" "$build/cudnn/include"
    rm -rf "$build/wheel"
  fi
  cudnn="-DCUDNN_ROOT=$toolkit -Dcudnn_frontend_ROOT=$build/cudnn"
fi

# --- Brume: portable, since the processor there may be another one ------------------------------------------------------
brume=$build/brume-$arch
say "Brume: configuring and building (the log: $brume.log)"
logged "$brume.log" cmake -S . -B "$brume" $generator -DCMAKE_BUILD_TYPE=Release -DBRUME_CUDA=ON -DBRUME_NATIVE=OFF \
  -DCMAKE_SKIP_RPATH=ON -DKokkos_ROOT="$kokkos" $cudnn -DMPIEXEC_EXECUTABLE:STRING=mpiexec -DCMAKE_UNITY_BUILD=ON \
  -DCMAKE_UNITY_BUILD_BATCH_SIZE=0
built_for=$(grep -E 'This build is for|Attention' "$brume.log" | sed 's/^-- //')
grep -q 'for NVIDIA devices' <<< "$built_for" || { echo "this is no build for devices: see $brume.log" >&2; exit 1; }
logged "$brume.log" cmake --build "$brume" -j "$jobs" --target brume $tests
say "Brume: built"

# --- what goes along: tests and benchmarks, the steps that try a GPU, text for the quick start to learn from ---------------
along=$build/along
rm -rf "$along"
mkdir -p "$along"/{bin,tests,share/brume}
for test in $tests; do
  strip -o "$along/tests/$test" "$brume/$([[ $test == perf_* ]] && echo perf || echo regression)/$test"
done
cp "$here"/{environment.sh,steps.sh,README.md} "$along/"
cp -r README.md src inc "$along/share/brume/"
cp "$(command -v h5dump)" "$along/bin/"
# The program says its manual page when it is installed, for which it must start, as it does with the toolkit's stub of a driver.
mkdir -p "$build/stub"
ln -sf "$toolkit/lib64/stubs/libcuda.so" "$build/stub/libcuda.so.1"
BUILT_FOR=$(tr '\n' ';' <<< "$built_for") LD_LIBRARY_PATH="$build/stub:$toolkit/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
  "$here/../pack.sh" "$brume" "$build/brume-sm_$arch.tar.xz" "$along"
say "done"
