// SPDX-License-Identifier: Apache-2.0
#include "engine/params.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "base/error.h"
#include "base/rng.h"
#include "base/small_float.h"
#include "program/buffer_contents.h"

namespace hocket::engine {

namespace {

/// Elements per copy between host and device.
constexpr int64_t kPieceElements = int64_t{1} << 18;

Placement stored_by(const program::Program& program, const std::string& only = "") {
  return {program, program::BufferKind::persistent, program::kNone, only};
}

/// Initial values of a tensor's elements [begin, begin + part.size()).
template <typename T>
void fill(const graph::Tensor& source, uint64_t seed, int64_t begin, std::span<T> part) {
  if (source.init.kind == graph::Init::Kind::normal) {
    fill_normal(part, seed, hash_name(source.name), static_cast<uint64_t>(begin),
                source.init.value);
  } else if (source.init.kind == graph::Init::Kind::uniform) {
    const uint64_t stream = hash_name(source.name);
    for (size_t i = 0; i < part.size(); ++i) {
      const double unit = uniform(seed, stream, static_cast<uint64_t>(begin) + i);
      part[i] = static_cast<T>(source.init.value * (2 * unit - 1));
    }
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
    std::vector<std::byte> host;  // empty: all zeros
    for (const std::string& name : program::tensors_of(buffer.name, buffer.slots)) {
      auto it = by_name.find(name);
      HOCKET_CHECK(it != by_name.end(), "persistent tensor {} is not in the graph", name);
      const graph::Tensor& t = *it->second;
      // Memory comes zeroed.
      const graph::Tensor& source = t.init.kind == graph::Init::Kind::copy ? graph.tensor(t.of) : t;
      if (source.init.kind == graph::Init::Kind::none || source.init.value == 0) continue;
      host.resize(static_cast<size_t>(buffer.type.bytes()));
      program::for_each_run(buffer, t.name, t.type, program, store.rank(),
                            [&](int64_t begin, int64_t count, int64_t local) {
                              fill(t, source, seed, begin, count,
                                   host.data() + t.type.bytes_of(local));
                            });
    }
    if (!host.empty()) {
      store.device().copy(entry.data, host.data(), std::ssize(host));
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
  for_each_held(tensor, program, stored_by(program, tensor.name).holders(tensor.name, ranks.ids()),
                [&](const Held& held) { use(held.begin, held.count); });
}

void scatter(const graph::Tensor& tensor, const program::Program& program,
             const runtime::Store& store,
             const std::function<void(int64_t, int64_t, void*)>& read) {
  const auto bytes = [&](int64_t n) { return tensor.type.bytes_of(n); };
  std::vector<std::byte> piece;
  const std::vector<Holder> holders =
      stored_by(program, tensor.name).holders(tensor.name, store.ranks().ids());
  for (const Holder& holder : holders) {
    store.at(holder.rank).get(*holder.buffer, program).initialised = true;
  }
  for_each_held(tensor, program, holders, [&](const Held& held) {
    runtime::PersistentStore& of_rank = store.at(held.rank);
    std::byte* const data = of_rank.entries().at(held.buffer->name).data;
    for (int64_t done = 0; done < held.count;) {
      const int64_t count = std::min(held.count - done, kPieceElements);
      piece.resize(static_cast<size_t>(bytes(count)));
      read(held.begin + done, count, piece.data());
      of_rank.device().copy(data + bytes(held.local + done), piece.data(), bytes(count));
      done += count;
    }
  });
}

Owners::Owners(const program::Program& program, runtime::Store store, std::vector<int32_t> among)
    : placement_(stored_by(program)), store_(std::move(store)), among_(std::move(among)) {}

std::vector<checkpoint::Share> Owners::shares(const graph::Tensor& tensor) const {
  // Ranks interleave in the tensor (columns, rows of experts), so their shares are sorted.
  std::vector<checkpoint::Share> owned;
  const auto add = [&](const Held& held) {
    if (!store_.ranks().has(held.rank)) return;
    runtime::PersistentStore& of_rank = store_.at(held.rank);
    const std::byte* const data = of_rank.entries().at(held.buffer->name).data;
    owned.push_back({held.rank, held.begin, held.count, data + tensor.type.bytes_of(held.local)});
  };
  for_each_once(tensor, placement_.program(), placement_.holders(tensor.name, among_), add);
  std::sort(owned.begin(), owned.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  return owned;
}

std::vector<std::byte> gather(const graph::Tensor& tensor, const program::Program& program,
                              const runtime::Store& store) {
  const auto fetch = [&](const Holder& holder, int64_t element, int64_t count, void* to) {
    const runtime::PersistentStore& of_rank = store.at(holder.rank);
    const std::byte* const data = of_rank.entries().at(holder.buffer->name).data;
    of_rank.device().copy(to, data + tensor.type.bytes_of(element), tensor.type.bytes_of(count));
  };
  return gather_tensor(tensor, stored_by(program, tensor.name), store.ranks(), fetch);
}

}  // namespace hocket::engine
