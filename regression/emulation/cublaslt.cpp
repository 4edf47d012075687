/// @file cuBLASLt's products, as far as Brume calls it: column-major, fp32 sums in a fixed order.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/float8.hpp"
#include "base/narrow.hpp"
#include "handles.hpp"

namespace brume::emulation {
namespace {

struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;  ///< elements from one column to the next
};

struct Operation {
  cublasComputeType_t compute;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  const void *scale_a = nullptr, *scale_b = nullptr;  ///< of factors of 8 bits, on the device
  void* auxiliary =
      nullptr;  ///< what gelu is of, elements `auxiliary_stride` from column to column
  std::int64_t auxiliary_stride = 0;
};

/// What the caller promises, and the algorithm keeps.
struct Preference {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  ///< of A, B, C, D [bytes]
};

bool has_8_bits(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

std::uint64_t bytes_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? 4 : has_8_bits(type) ? 1 : 2;
}

float load(const std::byte* memory, cudaDataType_t type, std::uint64_t i) {
  const auto element = [&](auto value) {
    std::memcpy(&value, memory + i * sizeof value, sizeof value);
    return float(value);
  };
  if (type == CUDA_R_32F) return element(0.0f);
  if (type == CUDA_R_8F_E4M3) return element(float8_e4m3());
  if (type == CUDA_R_8F_E5M2) return element(float8_e5m2());
  return type == CUDA_R_16BF ? element(bfloat16()) : element(float16());
}

void store(std::byte* memory, cudaDataType_t type, std::uint64_t i, float value) {
  const auto element = [&](auto rounded) {
    std::memcpy(memory + i * sizeof rounded, &rounded, sizeof rounded);
  };
  if (type == CUDA_R_32F) return element(value);
  type == CUDA_R_16BF ? element(bfloat16(value)) : element(float16(value));
}

/// Whether Hopper's kernels take such factors of 8 bits: A transposed and B not, both aligned to 16
/// bytes with sizes that are multiples of 16, one of e5m2 at most, sums that are not rounded; and
/// no gradient of a bias beside it.
/// @source  NVIDIA, cuBLAS 13.0, cublasLtMatmul()
bool takes_8_bits(const Operation& o, const Layout& a, const Layout& b, const Layout& d,
                  const Preference& promised) {
  const auto whole = [](std::uint64_t size) { return size % 16 == 0; };
  const bool sizes = whole(a.rows) && whole(a.columns) && whole(b.columns) && whole(a.stride) &&
                     whole(b.stride) && whole(std::uint64_t(d.stride) * bytes_of(d.type));
  const bool aligned = std::ranges::all_of(promised.alignment, whole);
  const bool formats = has_8_bits(a.type) && has_8_bits(b.type) &&
                       (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) &&
                       (d.type == CUDA_R_16BF || d.type == CUDA_R_32F);
  const bool epilogue = o.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                        (o.epilogue != CUBLASLT_EPILOGUE_BGRADB && d.type == CUDA_R_16BF);
  return emulated_capability() >= 89 && sizes && aligned && formats && epilogue &&
         o.transpose_a == CUBLAS_OP_T && o.transpose_b == CUBLAS_OP_N &&
         o.compute == CUBLAS_COMPUTE_32F;
}

/// TF32 keeps 10 bits of the fraction.
float tf32(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000u) & ~0x1fffu);
}

/// A factor as fp32 [inner][outer], whatever way it lies.
std::vector<float> factor(const std::byte* memory, const Layout& layout, bool inner_is_rows,
                          bool rounds) {
  const std::uint64_t inner = inner_is_rows ? layout.rows : layout.columns;
  const std::uint64_t outer = inner_is_rows ? layout.columns : layout.rows;
  std::vector<float> values(inner * outer);
  for (std::uint64_t column = 0; column < layout.columns; ++column)
    for (std::uint64_t row = 0; row < layout.rows; ++row) {
      const float value = load(memory, layout.type, column * std::uint64_t(layout.stride) + row);
      values[inner_is_rows ? row * outer + column : column * outer + row] =
          rounds ? tf32(value) : value;
    }
  return values;
}

double gelu(double z) {
  return 0.5 * z * (1.0 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
}
double gelu_slope(double z) {
  const double t = std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z));
  return 0.5 * (1.0 + t) +
         0.5 * z * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * z * z);
}

Range range(const void* address, const Layout& layout, Access access) {
  const std::uint64_t element = bytes_of(layout.type);
  Range made = range(address, layout.rows * element, layout.columns,
                     std::uint64_t(layout.stride) * element, access, "a product");
  if (!made.known) report("a product has a matrix in the host's own memory");
  return made;
}

template <class Value>
void read(Value& value, const void* from, std::size_t bytes) {
  if (bytes != sizeof value) report("an attribute of cuBLASLt has another size than its value");
  std::memcpy(&value, from, bytes);
}

template <class Handle, class Object>
cublasStatus_t make(Handle* handle, Object object) {
  if (next_call_fails("cublas")) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = reinterpret_cast<Handle>(new Object(object));
  return CUBLAS_STATUS_SUCCESS;
}
template <class Object, class Handle>
Object& object_of(Handle handle) {
  return *reinterpret_cast<Object*>(handle);
}
template <class Object, class Handle>
const Object& constant_of(Handle handle) {
  return *reinterpret_cast<const Object*>(handle);
}

}  // namespace
}  // namespace brume::emulation

using namespace brume::emulation;

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_ALLOC_FAILED ? "CUBLAS_STATUS_ALLOC_FAILED" : "an emulated status";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return make(handle, 0); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete &object_of<int>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  if (type != CUDA_R_32F && type != CUDA_R_16BF && type != CUDA_R_16F && !has_8_bits(type))
    report(fmt::format("matrices of type {} are not emulated", int(type)));
  if (rows == 0 || columns == 0 || stride < std::int64_t(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  return make(layout, Layout{type, rows, columns, stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &object_of<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (scale != CUDA_R_32F ||
      (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32))
    report(fmt::format("products of compute type {} are not emulated", int(compute)));
  return make(operation, Operation{.compute = compute});
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Operation& operation = object_of<Operation>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: read(operation.transpose_a, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: read(operation.transpose_b, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: read(operation.epilogue, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: read(operation.bias, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: read(operation.auxiliary, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: read(operation.scale_a, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: read(operation.scale_b, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      read(operation.auxiliary_stride, value, bytes);
      break;
    default: report(fmt::format("attribute {} of a product is not emulated", int(attribute)));
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete &object_of<Operation>(operation);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(preference, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference& preference = object_of<Preference>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      read(preference.workspace_bytes, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      read(preference.alignment[0], value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      read(preference.alignment[1], value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      read(preference.alignment[2], value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      read(preference.alignment[3], value, bytes);
      break;
    default: report(fmt::format("preference {} of a product is not emulated", int(attribute)));
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &object_of<Preference>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  if (wanted != 1) report("more than one algorithm for a product, which is not emulated");
  // As a library has it for some shapes and types.
  const bool plain = constant_of<Operation>(operation).epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  if (*count = 0; !plain && std::getenv("BRUME_EMULATED_WITHOUT_EPILOGUES"))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const Layout &of_a = constant_of<Layout>(a), &of_b = constant_of<Layout>(b);
  if ((has_8_bits(of_a.type) || has_8_bits(of_b.type)) &&
      !takes_8_bits(constant_of<Operation>(operation), of_a, of_b, constant_of<Layout>(d),
                    constant_of<Preference>(preference)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  static_assert(sizeof(Preference) <= sizeof found->algo);
  std::memcpy(&found->algo, &constant_of<Preference>(preference), sizeof(Preference));
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t handle, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t of_a, const void* b,
                              cublasLtMatrixLayout_t of_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t of_c, void* d, cublasLtMatrixLayout_t of_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t handle_of_stream) {
  Stream& stream = stream_of(handle_of_stream);
  Locked locked;
  const Operation operation = constant_of<Operation>(handle);
  const Layout A = constant_of<Layout>(of_a), B = constant_of<Layout>(of_b),
               C = constant_of<Layout>(of_c), D = constant_of<Layout>(of_d);
  const bool ta = operation.transpose_a != CUBLAS_OP_N, tb = operation.transpose_b != CUBLAS_OP_N;
  const std::uint64_t rows = ta ? A.columns : A.rows, inner = ta ? A.rows : A.columns,
                      columns = tb ? B.rows : B.columns;
  const bool of_8_bits = has_8_bits(A.type) || has_8_bits(B.type);
  if ((tb ? B.columns : B.rows) != inner || D.rows != rows || D.columns != columns ||
      (A.type != B.type && !of_8_bits))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (C.type != D.type || C.rows != D.rows || C.columns != D.columns)
    return CUBLAS_STATUS_INVALID_VALUE;
  Preference promised;
  std::memcpy(static_cast<void*>(&promised), algorithm, sizeof promised);
  if (of_8_bits && !takes_8_bits(operation, A, B, D, promised)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const void* const pointers[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (reinterpret_cast<std::uint64_t>(pointers[i]) % promised.alignment[i] != 0)
      report(fmt::format(
          "a product's matrix {} is not aligned to {} bytes, for which its algorithm was chosen",
          "ABCD"[i], promised.alignment[i]));
  if (workspace_bytes < promised.workspace_bytes)
    report("a product has less workspace than its algorithm was chosen for");
  float scale, kept;
  read(scale, alpha, sizeof scale);
  read(kept, beta, sizeof kept);
  const Range in_a = range(a, A, Access::read), in_b = range(b, B, Access::read),
              out = range(d, D, Access::write);
  Range old{nullptr, false, {}}, bias{nullptr, false, {}}, gradient{nullptr, false, {}},
      gelu_of{nullptr, false, {}}, space{nullptr, false, {}};
  const Layout Z{D.type, rows, columns, operation.auxiliary_stride};
  const bool makes_gelu = operation.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  if (makes_gelu || operation.epilogue == CUBLASLT_EPILOGUE_DGELU) {
    if (reinterpret_cast<std::uint64_t>(operation.auxiliary) % 16 != 0 || Z.stride % 8 != 0 ||
        Z.stride < std::int64_t(rows))
      report(
          "what gelu is of does not lie as cuBLASLt asks: at 16 bytes, columns 8 elements apart");
    gelu_of = range(operation.auxiliary, Z, makes_gelu ? Access::write : Access::read);
  }
  if (kept != 0.0f) old = range(c, C, Access::read);
  Range by_a{nullptr, false, {}}, by_b{nullptr, false, {}};
  if (of_8_bits) {
    static int products = 0;
    const int left_out = planted("scale");
    const auto factor_of = [](Range& by, const void* at) {
      if (at) by = range(at, sizeof(float), Access::read, "the scale of a product's factor");
      if (at && !by.known) report("the scale of a product's factor lies in the host's own memory");
    };
    factor_of(by_a, operation.scale_a);
    if (left_out == 0 || ++products != left_out) factor_of(by_b, operation.scale_b);
  }
  switch (operation.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_DGELU: break;
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      bias = range(operation.bias, rows * bytes_of(D.type), Access::read, "a product's bias");
      break;
    case CUBLASLT_EPILOGUE_BGRADB:
      gradient = range(operation.bias, columns * bytes_of(D.type), Access::write,
                       "a product's bias gradient");
      break;
    default:
      report(fmt::format("epilogue {} of a product is not emulated", int(operation.epilogue)));
  }
  // It may be used, as some algorithms do.
  if (workspace_bytes > 0)
    space = range(workspace, workspace_bytes, Access::write, "a product's workspace");
  put(locked, stream, "a product", [=] {
    const bool rounds = operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const std::vector<float> left = factor(in_a.host, A, ta, rounds),
                             right = factor(in_b.host, B, !tb, rounds);
    const auto number = [](const Range& at) {
      return at.host ? load(at.host, CUDA_R_32F, 0) : 1.0f;
    };
    const float whole_scale = scale * number(by_a) * number(by_b);
    std::vector<float> sums(rows);
    for (std::uint64_t column = 0; column < columns; ++column) {
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (std::uint64_t k = 0; k < inner; ++k) {
        const float by = right[k * columns + column];
        const float* const values = left.data() + k * rows;
        for (std::uint64_t row = 0; row < rows; ++row) sums[row] += values[row] * by;
      }
      for (std::uint64_t row = 0; row < rows; ++row) {
        const std::uint64_t at = column * std::uint64_t(D.stride) + row;
        float value = whole_scale * sums[row];
        if (kept != 0.0f)
          value += kept * load(old.host, C.type, column * std::uint64_t(C.stride) + row);
        if (bias.host != nullptr) value += load(bias.host, D.type, row);
        const std::uint64_t at_z = column * std::uint64_t(Z.stride) + row;
        if (makes_gelu) {
          store(gelu_of.host, Z.type, at_z, value);
          value = float(gelu(value));
        } else if (gelu_of.host != nullptr) {
          value *= float(gelu_slope(load(gelu_of.host, Z.type, at_z)));
        }
        store(out.host, D.type, at, value);
      }
      if (gradient.host == nullptr) continue;
      float sum = 0.0f;
      for (std::uint64_t k = 0; k < inner; ++k) sum += right[k * columns + column];
      store(gradient.host, D.type, column, sum);
    }
    return intervals(in_a, in_b, by_a, by_b, old, bias, gradient, gelu_of, space, out);
  });
  return CUBLAS_STATUS_SUCCESS;
}
