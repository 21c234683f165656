// SPDX-License-Identifier: Apache-2.0
#include "engine/params.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <span>

#include "base/error.h"
#include "base/intervals.h"
#include "base/rng.h"
#include "base/small_float.h"
#include "program/contract.h"

namespace hocket::engine {

namespace {

/// (rank, buffer) of every persistent buffer that is here and holds some of the tensor.
template <typename F>
void for_each_holder(const std::string& name, const program::Program& program,
                     const runtime::LocalRanks& ranks, F use) {
  for (int32_t rank : ranks.ids()) {
    for (const program::Buffer& buffer : program.classes[program.class_of(rank)].buffers) {
      if (buffer.kind == program::BufferKind::persistent && program::holds(buffer, name)) {
        use(rank, buffer);
      }
    }
  }
}

/// Initial values of a tensor's elements [begin, begin + part.size()).
template <typename T>
void fill(const graph::Tensor& source, uint64_t seed, int64_t begin, std::span<T> part) {
  if (source.init.kind == graph::Init::Kind::normal) {
    fill_normal(part, seed, hash_name(source.name), static_cast<uint64_t>(begin),
                source.init.value);
  } else {
    std::fill(part.begin(), part.end(), static_cast<T>(source.init.value));
  }
}

/// The same in numbers of two bytes: those of f32, rounded.
template <typename Small>
void fill_rounded(const graph::Tensor& source, uint64_t seed, int64_t begin,
                  std::span<typename Small::Stored> part) {
  std::array<float, 1024> wide;
  for (size_t done = 0; done < part.size(); done += wide.size()) {
    const size_t count = std::min(wide.size(), part.size() - done);
    fill(source, seed, begin + static_cast<int64_t>(done), std::span(wide).first(count));
    std::transform(wide.begin(), wide.begin() + count, part.begin() + done,
                   [](float value) { return Small::encode(value); });
  }
}

/// Fills `count` elements of `tensor` from `begin` on, which lie at `to`, with the initial values
/// that `source` has there.
void fill(const graph::Tensor& tensor, const graph::Tensor& source, uint64_t seed, int64_t begin,
          int64_t count, void* to) {
  const auto part = [&]<typename T>(T) {
    return std::span(static_cast<T*>(to), static_cast<size_t>(count));
  };
  switch (tensor.type.dtype) {
    case graph::DType::f64:
      return fill(source, seed, begin, part(double{}));
    case graph::DType::f32:
      return fill(source, seed, begin, part(float{}));
    case graph::DType::bf16:
      return fill_rounded<Bf16>(source, seed, begin, part(uint16_t{}));
    case graph::DType::f16:
      return fill_rounded<F16>(source, seed, begin, part(uint16_t{}));
    default:
      fail_run("parameters",
               "{} is {}; expected f32, f64, bf16 or f16 where there is an initial value",
               tensor.name, to_string(tensor.type));
  }
}

}  // namespace

std::vector<std::byte> put_together(const graph::Tensor& tensor, const program::Program& program,
                                    const std::vector<Part>& parts) {
  const auto bytes = [&](int64_t n) { return tensor.type.bytes_of(n); };
  std::vector<std::byte> full(static_cast<size_t>(tensor.type.bytes()));
  int64_t missing = tensor.type.numel();
  Intervals seen;
  for (const Part& part : parts) {
    if (missing == 0) break;  // the rest are replicas
    program::for_each_run(*part.buffer, tensor.name, tensor.type, program, part.rank,
                          [&](int64_t begin, int64_t count, int64_t local) {
                            seen.add(begin, count, [&](int64_t from, int64_t length) {
                              std::memcpy(full.data() + bytes(from),
                                          part.data + bytes(local - part.first + from - begin),
                                          static_cast<size_t>(bytes(length)));
                              missing -= length;
                            });
                          });
  }
  if (missing == 0) return full;
  fail_run("params", "{} of {} elements of {} are on no rank that is here", missing,
           tensor.type.numel(), tensor.name);
}

std::vector<Part> first_holders(const graph::Tensor& tensor, const program::Program& program,
                                const std::function<bool(const program::Buffer&)>& holds) {
  std::vector<Part> parts;
  int64_t missing = tensor.type.numel();
  Intervals seen;
  for (int32_t rank = 0; rank < program.num_ranks() && missing > 0; ++rank) {
    for (const program::Buffer& buffer : program.classes[program.class_of(rank)].buffers) {
      if (!holds(buffer)) continue;
      const int64_t before = missing;
      program::for_each_run(buffer, tensor.name, tensor.type, program, rank,
                            [&](int64_t begin, int64_t count, int64_t) {
                              seen.add(begin, count, [&](int64_t, int64_t n) { missing -= n; });
                            });
      if (missing < before) {
        parts.push_back({rank, &buffer, nullptr});
      }
    }
  }
  if (missing == 0) return parts;
  fail_run("params", "{} of {} elements of {} are on no rank", missing, tensor.type.numel(),
           tensor.name);
}

namespace {

/// The elements of a part's buffer from the first to the last that is of the tensor.
struct Extent {
  int64_t begin = 0, end = 0;
};
Extent extent_of(const Part& part, const graph::Tensor& tensor, const program::Program& program) {
  Extent extent{std::numeric_limits<int64_t>::max(), 0};
  program::for_each_run(*part.buffer, tensor.name, tensor.type, program, part.rank,
                        [&](int64_t, int64_t count, int64_t local) {
                          extent.begin = std::min(extent.begin, local);
                          extent.end = std::max(extent.end, local + count);
                        });
  return extent;
}

}  // namespace

std::vector<std::byte> put_together_from_all(const graph::Tensor& tensor,
                                             const program::Program& program,
                                             const std::vector<Part>& here,
                                             std::vector<Part> needed, comm::Processes& processes) {
  // Every process has one rank, of its own number. The symbols of a type have the values that they
  // have in the tensor's.
  const graph::TensorType& type = tensor.type;
  std::string mine;
  for (const Part& part : needed) {
    for (const Part& own : here) {
      if (own.rank != part.rank || own.buffer != part.buffer) continue;
      const Extent extent = extent_of(own, tensor, program);
      mine.append(reinterpret_cast<const char*>(own.data) + type.bytes_of(extent.begin),
                  static_cast<size_t>(type.bytes_of(extent.end - extent.begin)));
    }
  }
  const std::vector<std::string> all = processes.all_gather(mine);
  std::vector<size_t> taken(all.size(), 0);
  for (Part& part : needed) {
    const auto from = static_cast<size_t>(part.rank);
    const Extent extent = extent_of(part, tensor, program);
    part.data = reinterpret_cast<const std::byte*>(all[from].data()) + taken[from];
    part.first = extent.begin;
    taken[from] += static_cast<size_t>(type.bytes_of(extent.end - extent.begin));
  }
  return put_together(tensor, program, needed);
}

void initialise(const graph::Graph& graph, const program::Program& program, uint64_t seed,
                runtime::PersistentStore& store) {
  std::map<std::string, const graph::Tensor*> by_name;
  for (const graph::Tensor& tensor : graph.tensors) {
    if (tensor.kind == graph::TensorKind::param || tensor.kind == graph::TensorKind::state) {
      by_name[tensor.name] = &tensor;
    }
  }
  for (const auto& buffer : program.classes[program.class_of(store.rank())].buffers) {
    if (buffer.kind != program::BufferKind::persistent) continue;
    auto& entry = store.get(buffer, program);
    if (entry.initialised) continue;
    entry.initialised = true;
    for (const std::string& name : program::tensors_of(buffer.name, buffer.slots)) {
      auto it = by_name.find(name);
      HOCKET_CHECK(it != by_name.end(), "persistent tensor {} is not in the graph", name);
      const graph::Tensor& t = *it->second;
      // Memory comes zeroed.
      const graph::Tensor& source = t.init.kind == graph::Init::Kind::copy ? graph.tensor(t.of) : t;
      if (source.init.kind == graph::Init::Kind::none || source.init.value == 0) continue;
      std::byte* const data = entry.memory->data();
      program::for_each_run(buffer, t.name, t.type, program, store.rank(),
                            [&](int64_t begin, int64_t count, int64_t local) {
                              fill(t, source, seed, begin, count, data + t.type.bytes_of(local));
                            });
    }
  }
}

void initialise(const graph::Graph& graph, const program::Program& program, uint64_t seed,
                const runtime::Store& store) {
  for (int32_t id : store.ranks().ids()) {
    initialise(graph, program, seed, store.at(id));
  }
}

void for_each_element_run(const graph::Tensor& tensor, const program::Program& program,
                          const runtime::LocalRanks& ranks,
                          const std::function<void(int64_t, int64_t)>& use) {
  for_each_holder(tensor.name, program, ranks, [&](int32_t rank, const program::Buffer& buffer) {
    program::for_each_run(buffer, tensor.name, tensor.type, program, rank,
                          [&](int64_t begin, int64_t count, int64_t) { use(begin, count); });
  });
}

void scatter(const graph::Tensor& tensor, const program::Program& program,
             const runtime::Store& store,
             const std::function<void(int64_t, int64_t, void*)>& read) {
  const runtime::LocalRanks& ranks = store.ranks();
  for_each_holder(tensor.name, program, ranks, [&](int32_t rank, const program::Buffer& buffer) {
    auto& entry = store.at(rank).get(buffer, program);
    entry.initialised = true;
    program::for_each_run(buffer, tensor.name, tensor.type, program, rank,
                          [&](int64_t begin, int64_t count, int64_t local) {
                            read(begin, count, entry.memory->data() + tensor.type.bytes_of(local));
                          });
  });
}

Owners::Owners(const program::Program& program, runtime::Store store, std::vector<int32_t> among)
    : program_(program),
      store_(std::move(store)),
      among_(std::move(among)),
      classes_(program.class_table()) {
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    for (const program::Buffer& buffer : program.classes[cls].buffers) {
      if (buffer.kind != program::BufferKind::persistent) continue;
      for (const std::string& tensor : program::tensors_of(buffer.name, buffer.slots)) {
        holders_[tensor][cls].push_back(&buffer);
      }
    }
  }
}

std::vector<checkpoint::Share> Owners::shares(const graph::Tensor& tensor) const {
  // Rank by rank, what no rank before it holds; once every element has been seen the rest are
  // replicas. Ranks take turns in the tensor (columns, rows of experts), so the runs are sorted.
  std::vector<checkpoint::Share> owned;
  const auto holders = holders_.find(tensor.name);
  if (holders == holders_.end()) return owned;
  int64_t missing = tensor.type.numel();
  Intervals seen;
  for (const int32_t rank : among_) {
    if (missing == 0) break;
    const auto here = holders->second.find(classes_[static_cast<size_t>(rank)]);
    if (here == holders->second.end()) continue;
    const bool mine = store_.ranks().has(rank);
    for (const program::Buffer* buffer : here->second) {
      const std::byte* data =
          mine ? store_.at(rank).entries().at(buffer->name).memory->data() : nullptr;
      program::for_each_run(*buffer, tensor.name, tensor.type, program_, rank,
                            [&](int64_t begin, int64_t count, int64_t local) {
                              seen.add(begin, count, [&](int64_t from, int64_t length) {
                                missing -= length;
                                if (!mine) return;
                                const std::byte* at =
                                    data + tensor.type.bytes_of(local + from - begin);
                                owned.push_back({rank, from, length, at});
                              });
                            });
    }
  }
  std::sort(owned.begin(), owned.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return owned;
}

std::vector<std::byte> gather(const graph::Tensor& tensor, const program::Program& program,
                              const runtime::Store& store) {
  const runtime::LocalRanks& ranks = store.ranks();
  std::vector<Part> here;
  for_each_holder(tensor.name, program, ranks, [&](int32_t rank, const program::Buffer& buffer) {
    const auto& entry = store.at(rank).entries().at(buffer.name);
    here.push_back({rank, &buffer, entry.memory->data()});
  });
  if (ranks.processes().size() == 1) return put_together(tensor, program, here);
  const auto holds = [&](const program::Buffer& buffer) {
    return buffer.kind == program::BufferKind::persistent && program::holds(buffer, tensor.name);
  };
  return put_together_from_all(tensor, program, here, first_holders(tensor, program, holds),
                               ranks.processes());
}

}  // namespace hocket::engine
