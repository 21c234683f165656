// SPDX-License-Identifier: Apache-2.0
// The values of a template while it is made, found by tensor and layout.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/layout.h"
#include "parallel/lowering/rank_template.h"

namespace hocket::parallel {

class ValueTable {
 public:
  /// `coords`: of a rank of the class; its pieces set the types of the values.
  ValueTable(const graph::Graph& graph, const graph::Mesh& mesh, std::vector<int32_t> coords)
      : graph_(graph), mesh_(mesh), coords_(std::move(coords)), values_of_(graph.tensors.size()) {}

  const Value& operator[](ValueId id) const { return values_[static_cast<size_t>(id)]; }
  Value& operator[](ValueId id) { return values_[static_cast<size_t>(id)]; }
  size_t size() const { return values_.size(); }

  /// Adds a value of a tensor that find() returns from now on. References to values are invalid
  /// after this and the other functions that add.
  ValueId add(graph::TensorId tensor, graph::Layout layout, Value::Life life);
  /// Adds a value of a tensor that find() does not return: a copy for one reader.
  ValueId add_hidden(graph::TensorId tensor, graph::Layout layout, Value::Life life);
  /// Adds an auxiliary value, which find() does not return.
  ValueId add(Value value);
  /// Returns the accumulator of a tensor, and adds it before its first use. The rank has one for
  /// the micro-batches of all routes.
  ValueId accumulator(graph::TensorId tensor, const graph::Layout& layout);

  /// Returns the value of a tensor in a layout, or kNone.
  ValueId find(graph::TensorId tensor, const graph::Layout& layout) const;
  /// Returns all values of a tensor that find() can return.
  const std::vector<ValueId>& of(graph::TensorId tensor) const { return values_of_[tensor]; }
  /// Lets find() return an existing value for another tensor, too.
  void alias(graph::TensorId tensor, ValueId value) { values_of_[tensor].push_back(value); }

  /// Keeps find() from returning this value of a tensor.
  void hide(graph::TensorId tensor, ValueId value) { std::erase(values_of_[tensor], value); }
  /// Keeps find() from returning those values of a tensor for which the predicate is true.
  template <class Predicate>
  void hide_if(graph::TensorId tensor, const Predicate& predicate) {
    std::erase_if(values_of_[tensor], [&](ValueId id) { return predicate((*this)[id]); });
  }

  /// Makes all values of a tensor that are added from now on views of a vector, at an element.
  void place_in_vector(graph::TensorId tensor, ValueId vector, int64_t begin) {
    home_of_[tensor] = {vector, begin};
  }
  /// Returns that vector. Requires: place_in_vector.
  ValueId vector_of(graph::TensorId tensor) const { return home_of_.at(tensor).base; }

  /// Moves the values out of the table.
  std::vector<Value> take() { return std::move(values_); }

 private:
  struct Home {
    ValueId base;
    int64_t begin;
  };

  const graph::Graph& graph_;
  const graph::Mesh& mesh_;
  const std::vector<int32_t> coords_;
  std::vector<Value> values_;
  std::vector<std::vector<ValueId>> values_of_;  // by tensor
  std::map<graph::TensorId, Home> home_of_;
};

}  // namespace hocket::parallel
