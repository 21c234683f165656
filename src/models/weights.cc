// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "models/builder.h"
#include "models/family.h"

namespace hocket::models {

namespace {

using Axis = WeightSlice::Axis;

int64_t product(const graph::Dims& dims) {
  int64_t elements = 1;
  for (int64_t dim : dims) {
    elements *= dim;
  }
  return elements;
}

/// Elements of a slice that form a box: along every axis, `size` indices from `first`.
struct Box {
  std::vector<int64_t> first, size;
};

/// Cuts elements [from, to) of the axes from `axis` on into boxes. `inner` has the elements of one
/// index by axis.
void cut(const std::vector<Axis>& axes, const std::vector<int64_t>& inner, size_t axis,
         int64_t from, int64_t to, Box& box, const std::function<void(const Box&)>& use) {
  if (from >= to) return;
  const auto whole_rest = [&] {
    for (size_t i = axis + 1; i < axes.size(); ++i) {
      box.first[i] = 0;
      box.size[i] = axes[i].size;
    }
    use(box);
  };
  const int64_t step = inner[axis];
  const auto part = [&](int64_t index, int64_t begin, int64_t end) {
    box.first[axis] = index;
    box.size[axis] = 1;
    cut(axes, inner, axis + 1, begin, end, box, use);
  };
  int64_t index = from / step;
  if (from % step != 0) {
    const int64_t end = std::min(step, to - index * step);
    part(index, from % step, end);
    ++index;
  }
  const int64_t last = to / step;
  if (last > index) {
    box.first[axis] = index;
    box.size[axis] = last - index;
    whole_rest();
    index = last;
  }
  if (index == last && to % step != 0 && last * step >= from) {
    part(last, 0, to % step);
  }
}

}  // namespace

int64_t WeightSlice::numel() const {
  if (axes.empty()) return product(dims);
  int64_t elements = 1;
  for (const Axis& axis : axes) {
    elements *= axis.size;
  }
  return elements;
}

WeightSlice slice_of_rows(std::string name, const FileRows& rows, int64_t columns, bool transposed,
                          int64_t offset) {
  HOCKET_CHECK(rows.run > 0 && rows.count % rows.run == 0, "{}: runs of {} of {} rows", name,
               rows.run, rows.count);
  const bool is_bias = columns == 0;
  const int64_t row = is_bias || transposed ? 1 : columns;
  WeightSlice slice;
  slice.name = std::move(name);
  slice.offset = offset;
  slice.begin = rows.first * row;
  if (is_bias) {
    slice.dims = {rows.total};
  } else if (transposed) {
    slice.dims = {columns, rows.total};
  } else {
    slice.dims = {rows.total, columns};
  }
  std::vector<Axis> axes = {{rows.count / rows.run, rows.stride * row}, {rows.run, row}};
  if (!is_bias) {
    axes.push_back({columns, transposed ? rows.total : 1});
  }
  // Joins axes that continue each other, so that a contiguous slice has one.
  for (const Axis& axis : axes) {
    if (axis.size == 1) continue;
    if (!slice.axes.empty() && slice.axes.back().stride == axis.size * axis.stride) {
      slice.axes.back() = {slice.axes.back().size * axis.size, axis.stride};
    } else {
      slice.axes.push_back(axis);
    }
  }
  if (slice.axes.empty()) {
    slice.axes.push_back({1, 1});
  }
  if (slice.axes.size() == 1 && slice.axes[0] == Axis{product(slice.dims), 1}) {
    slice.axes.clear();
  }
  return slice;
}

void for_each_run(const WeightSlice& slice, int64_t first, int64_t count,
                  const std::function<void(const WeightRun&)>& use) {
  HOCKET_CHECK(first >= slice.offset && first + count <= slice.offset + slice.numel(),
               "{}: elements {} + {} of {} from {}", slice.name, first, count, slice.numel(),
               slice.offset);
  const int64_t from = first - slice.offset;
  if (slice.axes.size() < 2 && (slice.axes.empty() || slice.axes[0].stride == 1)) {
    use({slice.begin + from, first, count, 1});
    return;
  }
  // The range is cut into boxes. In a box, the axis along which the tensor is contiguous has the
  // runs, and the others are walked in the tensor's order.
  const std::vector<Axis>& axes = slice.axes;
  std::vector<int64_t> inner(axes.size());
  int64_t elements = 1;
  for (size_t i = axes.size(); i-- > 0;) {
    inner[i] = elements;
    elements *= axes[i].size;
  }
  std::vector<size_t> order(axes.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return axes[a].stride > axes[b].stride; });
  const size_t fast = order.back();
  const bool runs = axes[fast].stride == 1;
  const auto walk = [&](const Box& box) {
    std::vector<int64_t> at(axes.size(), 0);
    for (;;) {
      WeightRun run{slice.begin, slice.offset, runs ? box.size[fast] : 1, inner[fast]};
      for (size_t i = 0; i < axes.size(); ++i) {
        run.stored += (box.first[i] + at[i]) * axes[i].stride;
        run.element += (box.first[i] + at[i]) * inner[i];
      }
      use(run);
      size_t next = order.size() - (runs ? 1 : 0);
      while (next > 0) {
        const size_t axis = order[next - 1];
        if (++at[axis] < box.size[axis]) break;
        at[axis] = 0;
        --next;
      }
      if (next == 0) return;
    }
  };
  Box box{std::vector<int64_t>(axes.size(), 0), std::vector<int64_t>(axes.size(), 1)};
  cut(axes, inner, 0, from, from + count, box, walk);
}

std::vector<ParamWeights> weight_map(const ModelConfig& config) {
  BuildOptions options;
  options.mode = BuildOptions::Mode::logits;
  options.tokens = 1;
  Builder builder(config, options, true);
  builder.build();
  return builder.take_weights();
}

bool is_ignored_weight(const ModelConfig& config, std::string_view name) {
  constexpr std::string_view kFrequencies = ".rotary_emb.inv_freq";
  if (name.ends_with(kFrequencies)) return true;
  const Storage& storage = family_of(config).storage;
  const auto begins = [&](const char* text) { return name.starts_with(text); };
  const auto ends = [&](const char* text) { return name.ends_with(text); };
  return std::any_of(storage.ignored_begins.begin(), storage.ignored_begins.end(), begins) ||
         std::any_of(storage.ignored_ends.begin(), storage.ignored_ends.end(), ends);
}

std::vector<std::string> weight_prefixes(const ModelConfig& config) {
  const Storage& storage = family_of(config).storage;
  return {storage.prefixes.begin(), storage.prefixes.end()};
}

}  // namespace hocket::models
