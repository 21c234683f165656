// SPDX-License-Identifier: Apache-2.0
#include "collectives/parts.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"
#include "base/small_float.h"

namespace hocket::comm {

namespace {

/// Type in which elements of type T are summed: f32 for 16-bit types.
template <typename T>
using Sum = decltype(number<T>(Stored<T>{}));

/// Rounds a sum to the stored type.
template <typename T>
Stored<T> rounded(Sum<T> sum) {
  if constexpr (kIsSmallFloat<T>) {
    return T::encode(sum);
  } else {
    return sum;
  }
}

/// Adds `next` to `total`, or takes the elementwise maximum.
template <typename T>
void take_in(graph::Monoid monoid, const Stored<T>* next, int64_t count, Sum<T>* total) {
  if (monoid == graph::Monoid::sum) {
    for (int64_t i = 0; i < count; ++i) {
      total[i] += number<T>(next[i]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      total[i] = std::max(total[i], number<T>(next[i]));
    }
  }
}

/// Reduces in blocks of a compile-time length, so that the loops are vectorised. Every sum is
/// rounded once, at the end.
template <typename T>
void reduce_as(graph::Monoid monoid, std::span<const void* const> from, int64_t begin,
               int64_t count, void* to) {
  constexpr int64_t kBlock = 256;
  std::array<Sum<T>, kBlock> total;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t length = std::min(kBlock, count - done);
    const auto source = [&](size_t k) {
      return static_cast<const Stored<T>*>(from[k]) + begin + done;
    };
    for (int64_t i = 0; i < length; ++i) {
      total[i] = number<T>(source(0)[i]);
    }
    for (size_t k = 1; k < from.size(); ++k) {
      if (length == kBlock) {
        take_in<T>(monoid, source(k), kBlock, total.data());
      } else {
        take_in<T>(monoid, source(k), length, total.data());
      }
    }
    Stored<T>* const target = static_cast<Stored<T>*>(to) + done;
    for (int64_t i = 0; i < length; ++i) {
      target[i] = rounded<T>(total[i]);
    }
  }
}

/// Adds the copies of a region that two larger regions contain, from the memory of one to that of
/// the other. Trailing dims that are whole in both are contiguous and become one copy.
void add_copies(const std::vector<graph::Run>& from, const std::vector<graph::Run>& to,
                const std::vector<graph::Run>& region, int32_t source, std::vector<Copy>* copies) {
  size_t inner = region.size();
  int64_t count = 1;
  while (inner > 0) {
    --inner;
    count *= region[inner].length;
    if (region[inner] != from[inner] || region[inner] != to[inner]) break;
  }
  const auto place = [&](const std::vector<graph::Run>& in, const std::vector<int64_t>& index) {
    int64_t at = 0;
    for (size_t dim = 0; dim < in.size(); ++dim) {
      at = at * in[dim].length + index[dim] - in[dim].begin;
    }
    return at;
  };
  std::vector<int64_t> index;
  for (const graph::Run& run : region) {
    index.push_back(run.begin);
  }
  for (bool more = true; more;) {
    copies->push_back({source, place(from, index), place(to, index), count});
    more = false;
    for (size_t dim = inner; dim-- > 0 && !more;) {
      more = ++index[dim] < region[dim].begin + region[dim].length;
      if (!more) {
        index[dim] = region[dim].begin;
      }
    }
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

graph::Run run_of_member(int64_t size, size_t members, size_t member,
                         const std::vector<int64_t>& lengths) {
  if (lengths.empty()) {
    return graph::share(size, static_cast<int64_t>(members), static_cast<int64_t>(member));
  }
  const auto mine = lengths.begin() + static_cast<std::ptrdiff_t>(member);
  return {std::accumulate(lengths.begin(), mine, int64_t{0}), *mine};
}

MemberBlocks member_blocks(const TensorType& whole, int64_t dim, size_t members, size_t member,
                           const std::vector<int64_t>& lengths) {
  const Blocks all = blocks(whole, dim);
  const int64_t size = whole.dims[static_cast<size_t>(dim)];
  const int64_t index = size > 0 ? all.inner / size : 0;  // elements per index along `dim`
  const graph::Run mine = run_of_member(size, members, member, lengths);
  return {all.outer, mine.length * index, mine.begin * index, all.inner};
}

void reduce(graph::Monoid monoid, graph::DType dtype, std::span<const void* const> from,
            int64_t begin, int64_t count, void* to) {
  if (monoid == graph::Monoid::softmax || monoid == graph::Monoid::none) {
    fail_run("comm", "parts of a softmax are merged by an op, and some parts by none: not reduced");
  }
  switch (dtype) {
    case graph::DType::f32:
      return reduce_as<float>(monoid, from, begin, count, to);
    case graph::DType::f64:
      return reduce_as<double>(monoid, from, begin, count, to);
    case graph::DType::bf16:
      return reduce_as<Bf16>(monoid, from, begin, count, to);
    case graph::DType::f16:
      return reduce_as<F16>(monoid, from, begin, count, to);
    case graph::DType::i32:
      return reduce_as<int32_t>(monoid, from, begin, count, to);
    case graph::DType::i64:
      return reduce_as<int64_t>(monoid, from, begin, count, to);
    default:
      break;
  }
  fail_run("comm", "no local sum of {}", to_string(dtype));
}

Range part_of(const CollectiveArgs& all, int64_t size) {
  return {size * all.part / all.parts, size * (all.part + 1) / all.parts};
}

std::vector<const std::byte*> inputs(const CollectiveArgs& all, size_t i) {
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

std::optional<std::vector<Copy>> plan_copies(std::span<const Region> held, const Region& wanted,
                                             size_t first) {
  // Keeps the list of regions still wanted. Each holder supplies its intersection with them, which
  // splits a region into the supplied part and up to two others per dim.
  const auto size_of_region = [](const Region& region) {
    int64_t size = 1;
    for (const graph::Run& run : region) {
      size *= run.length;
    }
    return size;
  };
  std::vector<Copy> copies;
  std::vector<Region> left;
  if (size_of_region(wanted) > 0) {
    left.push_back(wanted);
  }
  for (size_t i = 0; i < held.size() && !left.empty(); ++i) {
    const size_t source = (first + i) % held.size();
    std::vector<Region> rest;
    for (Region region : left) {
      Region common = region;
      for (size_t dim = 0; dim < region.size(); ++dim) {
        const int64_t begin = std::max(region[dim].begin, held[source][dim].begin);
        const int64_t end = std::min(region[dim].begin + region[dim].length,
                                     held[source][dim].begin + held[source][dim].length);
        common[dim] = {begin, std::max<int64_t>(end - begin, 0)};
      }
      if (size_of_region(common) == 0) {
        rest.push_back(std::move(region));
        continue;
      }
      add_copies(held[source], wanted, common, static_cast<int32_t>(source), &copies);
      for (size_t dim = 0; dim < region.size(); ++dim) {
        const int64_t end = common[dim].begin + common[dim].length;
        const int64_t region_end = region[dim].begin + region[dim].length;
        for (const graph::Run& side :
             {graph::Run{region[dim].begin, common[dim].begin - region[dim].begin},
              graph::Run{end, region_end - end}}) {
          if (side.length == 0) continue;
          rest.push_back(region);
          rest.back()[dim] = side;
        }
        region[dim] = common[dim];
      }
    }
    left = std::move(rest);
  }
  if (!left.empty()) return std::nullopt;
  return copies;
}

int64_t Rows::owner(int64_t expert) const {
  // As in graph::share, the first members have one more where the members do not divide the run.
  const int64_t run = experts_ / outer_;
  const int64_t least = run / members_;
  const int64_t more = run % members_;
  const int64_t at = expert % run;
  const int64_t in_longer = more * (least + 1);
  return at < in_longer ? at / (least + 1) : more + (at - in_longer) / least;
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

RowWriter::RowWriter(const CollectiveArgs& all, size_t me)
    : from_(inputs(all, 0)),
      to_(static_cast<std::byte*>(all.members[me].out[0])),
      row_bytes_(all.in[0].bytes_of(all.in[0].row_size())),
      limit_(all.out[0].max_rows()) {}

void RowWriter::take(int64_t member, int64_t begin, int64_t count) {
  if (written_ + count > limit_) {
    fail_run("comm", "received more rows than the {} rows of the buffer", limit_);
  }
  copy_bytes(to_ + written_ * row_bytes_, from_[member] + begin * row_bytes_, count * row_bytes_);
  written_ += count;
}

}  // namespace hocket::comm
