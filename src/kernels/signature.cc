// SPDX-License-Identifier: Apache-2.0
#include "kernels/signature.h"

#include <algorithm>

#include "ops/rules.h"

namespace hocket::kernels {
namespace {

using graph::DType;
using graph::TensorType;

bool fits(std::string_view word, DType compiled_for, const TensorType& type) {
  if (word == "any") return true;
  if (type.encoding) return false;
  if (word == "plain") return graph::bits_of(type.dtype) >= 8;
  if (word == "T") return type.dtype == compiled_for;
  if (word == "S") return type.dtype == ops::sum_dtype(compiled_for);
  if (word == "G") {
    return type.dtype == compiled_for || type.dtype == ops::sum_dtype(compiled_for);
  }
  if (word == "f8") {
    return graph::is_floating(type.dtype) && graph::bits_of(type.dtype) == 8 &&
           ops::sum_dtype(compiled_for) != compiled_for;
  }
  return graph::to_string(type.dtype) == word;
}

/// Returns whether operands fit a list of words. Repeated words end it: each takes the most
/// operands possible.
bool list_fits(std::string_view words, DType compiled_for, std::span<const TensorType> types) {
  size_t next = 0;
  while (!words.empty()) {
    const size_t comma = std::min(words.find(','), words.size());
    std::string_view word = words.substr(0, comma);
    words.remove_prefix(std::min(comma + 1, words.size()));
    const bool repeated = word.ends_with('*');
    const bool optional = word.ends_with('?');
    if (repeated || optional) {
      word.remove_suffix(1);
    }
    if (next < types.size() && fits(word, compiled_for, types[next])) {
      do {
        ++next;
      } while (repeated && next < types.size() && fits(word, compiled_for, types[next]));
    } else if (!repeated && !optional) {
      return false;
    }
  }
  return next == types.size();
}

}  // namespace

bool takes(std::string_view signature, DType compiled_for, const OperandTypes& types) {
  while (!signature.empty()) {
    const size_t bar = std::min(signature.find('|'), signature.size());
    const std::string_view one = signature.substr(0, bar);
    signature.remove_prefix(std::min(bar + 1, signature.size()));
    const size_t arrow = one.find("->");
    if (list_fits(one.substr(0, arrow), compiled_for, types.in) &&
        list_fits(one.substr(arrow + 2), compiled_for, types.out)) {
      return true;
    }
  }
  return false;
}

}  // namespace hocket::kernels
