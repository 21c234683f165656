// SPDX-License-Identifier: Apache-2.0
#include "parallel/lowering/value_table.h"

#include "program/memory.h"

namespace hocket::parallel {

using graph::kNone;
using graph::Layout;
using graph::TensorId;
using graph::TensorType;

ValueId ValueTable::add_hidden(TensorId tensor, Layout layout, Value::Life life) {
  const TensorType& whole = graph_.tensor(tensor).type;
  Value value;
  value.tensor = tensor;
  value.type = graph::local_type(whole, layout, mesh_, coords_);
  value.layout = std::move(layout);
  value.life = life;
  value.name = graph_.tensor(tensor).name;
  if (whole.routed() && value.type.dims[0] < whole.dims[0]) {
    // Ragged: expect the rows that even routing sends here, times the headroom of the memory plan.
    const double rows =
        program::kExpectedRows * static_cast<double>(value.type.dims[1] * value.type.top_k) *
        static_cast<double>(value.type.dims[0]) / static_cast<double>(whole.dims[0]);
    value.expected_bytes =
        std::min(value.type.bytes(),
                 static_cast<int64_t>(rows + 1) * value.type.bytes_of(value.type.row_size()));
  }
  if (const auto home = home_of_.find(tensor); home != home_of_.end()) {
    value.base = home->second.base;
    value.begin = home->second.begin;
  }
  return add(std::move(value));
}

ValueId ValueTable::add(TensorId tensor, Layout layout, Value::Life life) {
  const ValueId id = add_hidden(tensor, std::move(layout), life);
  values_of_[tensor].push_back(id);
  return id;
}

ValueId ValueTable::add(Value value) {
  values_.push_back(std::move(value));
  return static_cast<ValueId>(values_.size() - 1);
}

ValueId ValueTable::accumulator(TensorId tensor, const Layout& layout) {
  for (const ValueId known : values_of_[tensor]) {
    if ((*this)[known].accumulator && (*this)[known].layout == layout) return known;
  }
  const ValueId made = add(tensor, layout, Value::Life::step);
  (*this)[made].accumulator = true;
  return made;
}

ValueId ValueTable::find(TensorId tensor, const Layout& layout) const {
  for (const ValueId id : values_of_[tensor]) {
    if ((*this)[id].layout == layout) return id;
  }
  return kNone;
}

}  // namespace hocket::parallel
