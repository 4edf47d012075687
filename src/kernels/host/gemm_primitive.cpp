/// @file Matrix products by oneDNN's matmul primitives, which are kept: making one takes longer
/// than a small product.
#include <omp.h>

#include <array>
#include <map>
#include <type_traits>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

#include "base/error.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/narrow.hpp"

namespace brume::kernels {
namespace {

using Data = dnnl::memory::data_type;

/// Primitives that a thread keeps, as many as oneDNN itself. Experts bring other numbers of rows
/// with each step, so that without a limit they would fill the memory.
constexpr std::size_t most_products = 1024;

/// A product of given sizes, strides and formats for a given number of threads.
struct Product {
  dnnl::memory::desc a, b, c, row;
  dnnl::matmul multiply;
};

dnnl::engine& processor() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::memory::desc layout(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                          Transpose transpose, Data data) {
  const bool turned = transpose == Transpose::yes;
  return {{rows, columns},
          data,
          turned ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1}};
}

/// @param row  of nothing: no row is added
Product make_product(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                     const dnnl::memory::desc& c, const dnnl::memory::desc& row, Write write) {
  dnnl::primitive_attr attributes;
  if (write == Write::accumulate) {
    dnnl::post_ops add;
    add.append_sum(1.0f);
    attributes.set_post_ops(add);
  }
  const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(a, b, row, c), attributes,
                                            processor());
  return {a, b, c, row, dnnl::matmul(chosen)};
}

/// Makes one oneDNN error an error of ours.
template <class Body>
void translated(std::int64_t m, std::int64_t n, std::int64_t k, Body body) {
  try {
    body();
  } catch (const dnnl::error& error) {
    const bool lacks = error.status == dnnl_unimplemented;
    throw Error(lacks || error.status == dnnl_out_of_memory ? Failure::resource : Failure::bug,
                "matrix product [{} x {}] [{} x {}]: {}", m, k, k, n,
                lacks ? "this processor has none" : error.message);
  }
}

template <class T>
constexpr Data data_of = std::is_same_v<T, float> ? Data::f32 : Data::bf16;

}  // namespace

bool has_bfloat16_primitive() {
  static const bool has = [] {
    try {
      const auto one = [](Data data) { return layout(1, 1, 1, Transpose::no, data); };
      make_product(one(Data::bf16), one(Data::bf16), one(Data::f32), {}, Write::replace);
      return true;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
  return has;
}

bool has_bfloat16_instructions() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

bool has_float16_instructions() { return false; }  // oneDNN has no products of fp16
bool has_float8_instructions() { return false; }
bool has_tf32_instructions() { return false; }

template <class Storage, class Result>
void gemm_by_primitive(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<Storage>& a,
                       const FactorOf<Storage>& b, Write write, Result* c, std::int64_t stride,
                       const Result* row) {
  // Per thread: ranks may be threads of one process, and a primitive serves one of them at a time.
  thread_local std::map<std::array<std::int64_t, 11>, Product> products;
  const std::array<std::int64_t, 11> key{m,
                                         n,
                                         k,
                                         a.stride,
                                         std::int64_t(a.transpose),
                                         b.stride,
                                         std::int64_t(b.transpose),
                                         stride,
                                         std::int64_t(write),
                                         row != nullptr,
                                         omp_get_max_threads()};
  if (products.size() > most_products) products.clear();
  translated(m, n, k, [&] {
    auto found = products.find(key);
    if (found == products.end())
      found = products
                  .emplace(key, make_product(layout(m, k, a.stride, a.transpose, data_of<Storage>),
                                             layout(k, n, b.stride, b.transpose, data_of<Storage>),
                                             layout(m, n, stride, Transpose::no, data_of<Result>),
                                             row ? layout(1, n, n, Transpose::no, data_of<Result>)
                                                 : dnnl::memory::desc(),
                                             write))
                  .first;
    const Product& product = found->second;
    thread_local dnnl::stream stream(processor());
    const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, processor(), const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, memory(product.a, a.data)},
                                                    {DNNL_ARG_WEIGHTS, memory(product.b, b.data)},
                                                    {DNNL_ARG_DST, memory(product.c, c)}};
    if (row != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory(product.row, row));
    product.multiply.execute(stream, arguments);
  });
}

template void gemm_by_primitive(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                                const FactorOf<float>&, Write, float*, std::int64_t, const float*);
template void gemm_by_primitive(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                                const FactorOf<bfloat16>&, Write, float*, std::int64_t,
                                const float*);
template void gemm_by_primitive(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                                const FactorOf<bfloat16>&, Write, bfloat16*, std::int64_t,
                                const bfloat16*);

}  // namespace brume::kernels
