// SPDX-License-Identifier: Apache-2.0
// Inputs of a step, and the one path by which they reach the ranks: values by the names of a
// program's inputs, of any type.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "graph/tensor_type.h"
#include "run/compile.h"
#include "runtime/executor.h"

namespace hocket::engine {

/// The values of one input, of the full logical tensor: those of micro-batch m begin `stride`
/// elements behind those of the one before it. An input of the whole step has one such tensor.
struct Feed {
  enum : int64_t { kOneAfterTheOther = -1 };
  graph::DType dtype = graph::DType::f32;
  std::span<const std::byte> values;
  int64_t stride = kOneAfterTheOther;  ///< 0: all micro-batches read the same
};

/// Returns the values of a feed for a micro-batch, or with kNone for the whole step; `type`: the
/// input's.
std::span<const std::byte> values_of(const Feed& feed, const graph::TensorType& type,
                                     int32_t micro_batch);

/// The inputs of a step by name. A program takes its own; others are ignored.
class FeedMap {
 public:
  /// `values` outlive the feeding.
  void add(const std::string& name, const Feed& feed) { feeds_[name] = feed; }
  template <class T>
  void add(const std::string& name, std::span<const T> values,
           int64_t stride = Feed::kOneAfterTheOther) {
    add(name, {dtype_of<T>(), std::as_bytes(values), stride});
  }
  /// Adds values that the map keeps.
  template <class T>
  void keep(const std::string& name, std::vector<T> values,
            int64_t stride = Feed::kOneAfterTheOther) {
    const auto kept = std::make_shared<const std::vector<T>>(std::move(values));
    kept_.push_back(kept);
    add(name, std::span<const T>(*kept), stride);
  }
  /// Returns the feed of an input; null: there is none.
  const Feed* find(const std::string& name) const;

 private:
  template <class T>
  static constexpr graph::DType dtype_of() {
    if constexpr (std::is_same_v<T, float>) return graph::DType::f32;
    if constexpr (std::is_same_v<T, double>) return graph::DType::f64;
    if constexpr (std::is_same_v<T, int32_t>) return graph::DType::i32;
    if constexpr (std::is_same_v<T, int64_t>) return graph::DType::i64;
  }

  std::map<std::string, Feed> feeds_;
  std::vector<std::shared_ptr<const void>> kept_;
};

/// Gives one rank its part of every input that its tasks read; the executor knows the values of
/// symbols. Throws Error if an input is not among the feeds, or is there of another type or size.
void feed(const FeedMap& feeds, const Compiled& compiled, int32_t rank,
          runtime::Executor& executor);

}  // namespace hocket::engine
