// SPDX-License-Identifier: Apache-2.0
#include "comm/ops/parts.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace hocket::comm {

namespace {

template <typename T>
void reduce_as(graph::Monoid monoid, std::span<const void* const> from, int64_t begin,
               int64_t count, void* to) {
  const bool sums = monoid == graph::Monoid::sum;
  for (int64_t i = 0; i < count; ++i) {
    T total = static_cast<const T*>(from[0])[begin + i];
    for (size_t k = 1; k < from.size(); ++k) {
      const T next = static_cast<const T*>(from[k])[begin + i];
      total = sums ? total + next : std::max(total, next);
    }
    static_cast<T*>(to)[i] = total;
  }
}

}  // namespace

Blocks blocks(const TensorType& type, int64_t dim) {
  Blocks blocks;
  for (size_t i = 0; i < type.dims.size(); ++i) {
    (static_cast<int64_t>(i) < dim ? blocks.outer : blocks.inner) *= type.dims[i];
  }
  return blocks;
}

void reduce(graph::Monoid monoid, graph::DType dtype, std::span<const void* const> from,
            int64_t begin, int64_t count, void* to) {
  if (monoid == graph::Monoid::softmax) {
    fail_run("comm", "parts of a softmax are merged by an op, not by a reduction");
  }
  switch (dtype) {
    case graph::DType::f32:
      return reduce_as<float>(monoid, from, begin, count, to);
    case graph::DType::f64:
      return reduce_as<double>(monoid, from, begin, count, to);
    case graph::DType::i32:
      return reduce_as<int32_t>(monoid, from, begin, count, to);
    case graph::DType::i64:
      return reduce_as<int64_t>(monoid, from, begin, count, to);
    default:
      break;
  }
  fail_run("comm", "no local sum of {}", to_string(dtype));
}

std::vector<const std::byte*> inputs(const Together& all, size_t i) {
  std::vector<const std::byte*> list;
  for (const Operands& operands : all.members) {
    list.push_back(static_cast<const std::byte*>(operands.in[i]));
  }
  return list;
}

int64_t total_bytes(std::span<const TensorType> types) {
  int64_t bytes = 0;
  for (const TensorType& type : types) {
    bytes += type.bytes();
  }
  return bytes;
}

int64_t Rows::held(int64_t member, int dim) const {
  int64_t rows = 0;
  for (int64_t e = 0; e < experts_; ++e) {
    if (dim == 1) {
      rows += of(member, e);
    } else if (owner(e) == member) {
      rows += of_all(e);
    }
  }
  return rows;
}

int64_t Rows::of_all(int64_t expert) const {
  int64_t rows = 0;
  for (int64_t source = 0; source < members_; ++source) {
    rows += of(source, expert);
  }
  return rows;
}

int64_t Rows::begin(int64_t source, int64_t expert, int dim) const {
  int64_t row = 0;
  for (int64_t e = 0; e < expert; ++e) {
    if (dim == 1) {
      row += of(source, e);
    } else if (owner(e) == owner(expert)) {
      row += of_all(e);
    }
  }
  for (int64_t other = 0; dim == 0 && other < source; ++other) {
    row += of(other, expert);
  }
  return row;
}

RowWriter::RowWriter(const Together& all, size_t me)
    : from_(inputs(all, 0)),
      to_(static_cast<std::byte*>(all.members[me].out[0])),
      row_bytes_(all.in[0].bytes_of(all.in[0].row_size())),
      limit_(all.out[0].max_rows()) {}

void RowWriter::take(int64_t member, int64_t begin, int64_t count) {
  if (written_ + count > limit_) {
    fail_run("comm", "more rows arrive than the {} rows of their buffer", limit_);
  }
  std::memcpy(to_ + written_ * row_bytes_, from_[member] + begin * row_bytes_,
              static_cast<size_t>(count * row_bytes_));
  written_ += count;
}

}  // namespace hocket::comm
