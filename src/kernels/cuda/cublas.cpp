#include "kernels/cublas.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "device/cuda.hpp"

namespace brume::kernels {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Failure::resource, "cuBLASLt: {} failed: {}{}", what, cublasLtGetStatusString(status),
              status == CUBLAS_STATUS_ALLOC_FAILED ? "; " + device::cuda_memory_left() : "");
}

cudaDataType_t data_type(ElementType type) {
  switch (type) {
    case ElementType::fp32:
    case ElementType::tf32: return CUDA_R_32F;
    case ElementType::bf16: return CUDA_R_16BF;
    case ElementType::fp16: return CUDA_R_16F;
    case ElementType::e4m3: return CUDA_R_8F_E4M3;
    case ElementType::e5m2: return CUDA_R_8F_E5M2;
  }
  return CUDA_R_32F;
}

/// A handle of cuBLASLt and the call that destroys it.
template <typename Handle, cublasStatus_t (*destroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle) destroy(handle);
  }
  Handle handle = nullptr;
};
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// The alignment of an address [bytes]: a power of two, as far as algorithms differ.
std::uint32_t alignment(const void* address) {
  return std::uint32_t(std::size_t{1}
                       << std::countr_zero(std::uintptr_t(address) | std::uintptr_t{256}));
}

bool has_8_bits(const DeviceMatrix& matrix) {
  return matrix.type == ElementType::e4m3 || matrix.type == ElementType::e5m2;
}

/// Of what an epilogue reads or writes nothing can be said to cuBLASLt but through the result's.
std::uint32_t result_alignment(const Product& p) {
  return std::min({alignment(p.d.data), alignment(p.side), alignment(p.z.data)});
}

auto key(const Product& p) {
  return std::tuple(p.a.rows, p.a.columns, p.a.stride, alignment(p.a.data), p.a.type, p.b.rows,
                    p.b.columns, p.b.stride, alignment(p.b.data), p.b.type, p.c.data != nullptr,
                    p.c.stride, alignment(p.c.data), p.d.stride, result_alignment(p), p.d.type,
                    p.transpose_a, p.transpose_b, p.epilogue, p.z.stride);
}

/// What cuBLASLt asks of z.
bool is_aligned(const Product& p) {
  return p.z.data == nullptr || (alignment(p.z.data) >= 16 && p.z.stride % 8 == 0);
}

/// Shapes that are kept. Experts bring other numbers of rows with each step.
constexpr std::size_t most_prepared = 4096;

/// The layouts and the algorithm of a shape.
struct Prepared {
  Operation operation;
  Layout a, b, c, d;
  bool found = false;
  cublasLtMatmulAlgo_t algorithm{};
};

void make_layout(Layout& layout, const DeviceMatrix& matrix) {
  check(cublasLtMatrixLayoutCreate(&layout.handle, data_type(matrix.type),
                                   std::uint64_t(matrix.columns), std::uint64_t(matrix.rows),
                                   matrix.stride),
        "describing a matrix");
}

template <typename Value>
void set(Operation& operation, cublasLtMatmulDescAttributes_t attribute, Value value) {
  check(cublasLtMatmulDescSetAttribute(operation.handle, attribute, &value, sizeof value),
        "describing a product");
}

cublasLtEpilogue_t native(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::slope: return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::gradient: return CUBLASLT_EPILOGUE_BGRADB;  // factors change places
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace

struct CublasLinear::Impl {
  Impl(void* memory, std::int64_t bytes) : workspace(memory), workspace_bytes(bytes) {
    check(cublasLtCreate(&handle), "starting");
  }
  ~Impl() {
    prepared.clear();
    cublasLtDestroy(handle);
  }

  /// Says where scales and the operands of an epilogue are.
  static void point(const Product& product, Prepared& p) {
    const auto scale = [&](cublasLtMatmulDescAttributes_t attribute, const DeviceMatrix& factor) {
      if (has_8_bits(factor)) set(p.operation, attribute, factor.scale);
    };
    scale(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b);
    scale(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a);
    if (product.side) set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.side);
    if (product.z.data) set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.z.data);
  }

  /// For cuBLASLt, which counts in columns, the transposed product D^T = B^T A^T + C^T of the same
  /// memory.
  void prepare(const Product& product, Prepared& p) const {
    const bool tf32 = product.a.type == ElementType::tf32;
    check(cublasLtMatmulDescCreate(&p.operation.handle,
                                   tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                   CUDA_R_32F),
          "describing a product");
    const auto transposed = [](bool yes) { return yes ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed(product.transpose_b));
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, transposed(product.transpose_a));
    set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, native(product.epilogue));
    make_layout(p.a, product.b);
    make_layout(p.b, product.a);
    make_layout(p.c, product.c.data ? product.c : product.d);
    make_layout(p.d, product.d);
    point(product, p);
    if (product.z.data) set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.z.stride);
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(&preference.handle), "stating a preference");
    const auto state = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(
          cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof value),
          "stating a preference");
    };
    state(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(workspace_bytes));
    // A parameter begins anywhere in its block's buffer; unasked, cuBLASLt counts on 256 bytes.
    state(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(product.b.data));
    state(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(product.a.data));
    state(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
          product.c.data ? alignment(product.c.data) : result_alignment(product));
    state(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result_alignment(product));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, p.operation.handle, p.a.handle, p.b.handle, p.c.handle, p.d.handle,
        preference.handle, 1, &found, &count);
    p.found = status == CUBLAS_STATUS_SUCCESS && count == 1;
    p.algorithm = found.algo;
    if (p.found || product.epilogue != Epilogue::none || has_8_bits(product.a)) return;
    check(status, "looking for an algorithm");
    throw Error(Failure::resource, "cuBLASLt: no algorithm for [{}, {}] x [{}, {}]", product.a.rows,
                product.a.columns, product.b.rows, product.b.columns);
  }

  /// Null where there is no algorithm.
  Prepared* find(const Product& product) {
    if (!is_aligned(product)) return nullptr;
    if (prepared.size() > most_prepared) prepared.clear();
    const auto [entry, fresh] = prepared.try_emplace(key(product));
    Prepared& p = entry->second;
    if (fresh) prepare(product, p);
    return p.found ? &p : nullptr;
  }

  bool run(const Product& product, cudaStream_t stream) {
    Prepared* const found = find(product);
    if (!found) return false;
    Prepared& p = *found;
    point(product, p);
    const float alpha = 1.0f, beta = product.c.data ? 1.0f : 0.0f;
    check(
        cublasLtMatmul(handle, p.operation.handle, &alpha, product.b.data, p.a.handle,
                       product.a.data, p.b.handle, &beta,
                       product.c.data ? product.c.data : product.d.data, p.c.handle, product.d.data,
                       p.d.handle, &p.algorithm, workspace, std::size_t(workspace_bytes), stream),
        "a product");
    return true;
  }

  cublasLtHandle_t handle = nullptr;
  void* workspace;
  std::int64_t workspace_bytes;
  std::map<decltype(key(std::declval<Product>())), Prepared> prepared;
};

CublasLinear::CublasLinear(void* workspace, std::int64_t workspace_bytes)
    : impl_(std::make_unique<Impl>(workspace, workspace_bytes)) {}

CublasLinear::~CublasLinear() = default;

bool CublasLinear::run(const Product& product, cudaStream_t stream) {
  return impl_->run(product, stream);
}

bool CublasLinear::has(const Product& product) { return impl_->find(product) != nullptr; }

bool CublasLinear::forward(DeviceMatrix x, DeviceMatrix w, const void* bias, DeviceMatrix residual,
                           DeviceMatrix y, cudaStream_t stream) {
  require(x.columns == w.columns && y.rows == x.rows && y.columns == w.rows, Failure::bug,
          "linear: x [N, I], w [O, I] and y [N, O] must fit");
  return impl_->run({.a = x,
                     .b = w,
                     .c = residual,
                     .d = y,
                     .transpose_a = false,
                     .transpose_b = true,
                     .epilogue = bias ? Epilogue::bias : Epilogue::none,
                     .side = const_cast<void*>(bias)},
                    stream);
}

bool CublasLinear::gelu_forward(DeviceMatrix x, DeviceMatrix w, const void* bias, DeviceMatrix u,
                                DeviceMatrix a, cudaStream_t stream) {
  require(x.columns == w.columns && a.rows == x.rows && a.columns == w.rows && bias != nullptr,
          Failure::bug, "linear: x [N, I], w [F, I], a bias and a [N, F] must fit");
  return impl_->run({.a = x,
                     .b = w,
                     .d = a,
                     .transpose_a = false,
                     .transpose_b = true,
                     .epilogue = Epilogue::gelu,
                     .side = const_cast<void*>(bias),
                     .z = u},
                    stream);
}

bool CublasLinear::gelu_backward(DeviceMatrix dy, DeviceMatrix w, DeviceMatrix u, DeviceMatrix du,
                                 cudaStream_t stream) {
  require(dy.columns == w.rows && du.rows == dy.rows && du.columns == w.columns, Failure::bug,
          "linear: dy [N, O], w [O, F] and du [N, F] must fit");
  return impl_->run({.a = dy,
                     .b = w,
                     .d = du,
                     .transpose_a = false,
                     .transpose_b = false,
                     .epilogue = Epilogue::slope,
                     .z = u},
                    stream);
}

void CublasLinear::backward_input(DeviceMatrix dy, DeviceMatrix w, Write write, DeviceMatrix dx,
                                  cudaStream_t stream) {
  require(dy.columns == w.rows && dx.rows == dy.rows && dx.columns == w.columns, Failure::bug,
          "linear: dy [N, O], w [O, I] and dx [N, I] must fit");
  impl_->run({.a = dy,
              .b = w,
              .c = write == Write::accumulate ? dx : DeviceMatrix(),
              .d = dx,
              .transpose_a = false,
              .transpose_b = false},
             stream);
}

bool CublasLinear::backward_weight(DeviceMatrix dy, DeviceMatrix x, Write write, DeviceMatrix dw,
                                   void* db, cudaStream_t stream) {
  require(dy.rows == x.rows && dw.rows == dy.columns && dw.columns == x.columns, Failure::bug,
          "linear: dy [N, O], x [N, I] and dw [O, I] must fit");
  return impl_->run({.a = dy,
                     .b = x,
                     .c = write == Write::accumulate ? dw : DeviceMatrix(),
                     .d = dw,
                     .transpose_a = true,
                     .transpose_b = false,
                     .epilogue = db ? Epilogue::gradient : Epilogue::none,
                     .side = db},
                    stream);
}

}  // namespace brume::kernels
