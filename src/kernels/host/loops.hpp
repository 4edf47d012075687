/// @file Launches and row sums that the host kernels share.
#pragma once

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <new>

#include "base/error.hpp"
#include "base/text.hpp"
#include "kernels/kokkos.hpp"
#include "kernels/promises.hpp"

namespace brume::kernels {

/// Calls body(). @throws Error(resource) with the kernel's name where it finds no memory
template <class Body>
void with_memory(const char* name, Body body) {
  try {
    body();
  } catch (const std::bad_alloc&) {
    throw Error(Failure::resource, "{}: {}", name, memory_ran_out);
  }
}

/// Calls body(i) for 0 <= i < count: in contiguous parts, one a thread of `use_threads`. What a
/// body throws is thrown here when all threads are done; of several errors, the first one.
///
/// OpenMP runs it, with the calling thread's team, as oneDNN does: a second pool would fight with
/// that one for the cores. A caller with one thread meets no other: ranks may be threads of one
/// process.
template <class Body>
void for_each(const char* name, std::int64_t count, Body body) {
  const Region region(name);
  const auto run = [&](std::int64_t begin, std::int64_t end) {
    with_memory(name, [&] {
      for (std::int64_t i = begin; i < end; ++i) body(i);
    });
  };
  const std::int64_t threads = std::min<std::int64_t>(count, omp_get_max_threads());
  if (threads <= 1) return run(0, count);
  std::exception_ptr first_error;  // an exception that leaves a parallel region ends the process
#pragma omp parallel num_threads(int(threads))
  try {
    const std::int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
    run(count * thread / team, count * (thread + 1) / team);
  } catch (...) {
#pragma omp critical(brume_first_error)
    if (!first_error) first_error = std::current_exception();
  }
  if (first_error) std::rethrow_exception(first_error);
}

/// Calls body(begin, end) for pieces of [0, count), in any order.
template <class Body>
void for_each_piece(const char* name, std::int64_t count, std::int64_t piece, Body body) {
  for_each(name, (count + piece - 1) / piece,
           [=](std::int64_t i) { body(i * piece, std::min(count, (i + 1) * piece)); });
}

/// Calls body(begin, end, first_number) for pieces of elements whose numbers follow each other.
///
/// @param numbers  an ElementNumbers
template <class Numbers, class Body>
void for_each_numbered_piece(const char* name, std::int64_t count, const Numbers& numbers,
                             Body body) {
  for_each_piece(name, count, 4096, [=](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t next = std::min(end, numbers.end_of_run(begin));
      body(begin, next, numbers(begin));
      begin = next;
    }
  });
}

inline constexpr std::int64_t most_columns = 2048;  ///< of a range, whose sums stay in L1

/// Calls body(begin, end) for ranges of columns that sum over rows: wide, so that rows are read in
/// long runs, but at least one a thread.
template <class Body>
void for_each_columns(const char* name, std::int64_t columns, Body body) {
  const std::int64_t share = ceil_div(columns, omp_get_max_threads());
  for_each_piece(name, columns, std::clamp<std::int64_t>(round_up(share, 16), 16, most_columns),
                 body);
}

/// sum_i term(i) for 0 <= i < count, added in the order of i whatever the number of threads.
template <class Sum = double, class Term>
Sum ordered_sum(const char* name, std::int64_t count, Term term) {
  std::array<Sum, 1024> terms;
  Sum sum{};
  for (std::int64_t first = 0; first < count; first += std::int64_t(terms.size())) {
    const std::int64_t block = std::min(count - first, std::int64_t(terms.size()));
    Sum* const out = terms.data();
    for_each(name, block, [=](std::int64_t i) { out[i] = term(first + i); });
    for (std::int64_t i = 0; i < block; ++i) sum += out[i];
  }
  return sum;
}

/// *sum = value  (+ *sum when accumulating)
inline void store(double value, Write write, double* sum) {
  *sum = write == Write::accumulate ? *sum + value : value;
}

/// The floats of the widest vector register; narrower machines take several registers for them.
using Lanes = float __attribute__((vector_size(64)));
constexpr int lanes = sizeof(Lanes) / sizeof(float);

template <class Term>
inline void load_lanes(Term term, int first, Lanes& out) {
#pragma omp simd
  for (int j = 0; j < lanes; ++j) out[j] = term(first + j);
}

/// Folds term(0) ... term(count - 1) by the associative `join(into, next)`, in an order that only
/// `count` decides. Four folds side by side, else each step waits for the last.
template <class Term, class Join>
inline float fold_terms(int count, float start, Term term, Join join) {
  Lanes f0 = start - Lanes{}, f1 = f0, f2 = f0, f3 = f0, next{};
  int i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    load_lanes(term, i, next), join(f0, next);
    load_lanes(term, i + lanes, next), join(f1, next);
    load_lanes(term, i + 2 * lanes, next), join(f2, next);
    load_lanes(term, i + 3 * lanes, next), join(f3, next);
  }
  for (; i + lanes <= count; i += lanes) load_lanes(term, i, next), join(f0, next);
  join(f0, f1), join(f2, f3), join(f0, f2);
  float folded = start;
  for (; i < count; ++i) join(folded, term(i));
  for (int j = 0; j < lanes; ++j) join(folded, float(f0[j]));
  return folded;
}

/// sum_i term(i) for 0 <= i < count, in fp32.
template <class Term>
inline float sum_terms(int count, Term term) {
  return fold_terms(count, 0.0f, term, [](auto& into, const auto& next) { into += next; });
}

/// max_i x[i], count >= 1; a NaN need not win.
template <class Storage>
inline float largest(const Storage* x, int count) {
  return fold_terms(
      count, float(x[0]), [=](int i) { return float(x[i]); },
      [](auto& into, const auto& next) { into = next > into ? next : into; });
}

}  // namespace brume::kernels
