/// @file The types in which weights and activations of a precision are stored.
#pragma once

#include "base/narrow.hpp"
#include "model/model.hpp"

namespace brume::model {

/// Calls body.operator()<Storage>(). @return what it returns
template <class Body>
decltype(auto) with_storage(Precision precision, Body&& body) {
  switch (precision) {
    case Precision::fp8:
    case Precision::bf16: return body.template operator()<bfloat16>();
    case Precision::fp16: return body.template operator()<float16>();
    case Precision::fp32: break;
  }
  return body.template operator()<float>();
}

}  // namespace brume::model
