// SPDX-License-Identifier: Apache-2.0
#include "engine/params.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"

namespace hocket::engine {

using graph::Layout;
using graph::Mesh;
using graph::TensorType;

void for_each_run(const TensorType& full, const Layout& layout, const program::Program& program,
                  int32_t rank, const std::function<void(int64_t, int64_t, int64_t)>& run) {
  const Mesh& mesh = program.roles[program.role_of(rank)].mesh;
  const std::vector<int32_t> coords = program.coords(rank);
  const size_t n = full.dims.size();
  std::vector<int64_t> begin, count;
  for (const graph::Run& mine : graph::local_runs(full, layout, mesh, coords)) {
    begin.push_back(mine.begin);
    count.push_back(mine.length);
  }
  // The trailing dims that are whole form one contiguous run together with the dim before them.
  size_t first = n;
  int64_t length = 1;
  while (first > 0) {
    --first;
    length *= count[first];
    if (count[first] != full.dims[first]) break;
  }
  std::vector<int64_t> index(first, 0);
  for (int64_t local = 0;; local += length) {
    int64_t at = 0;
    for (size_t d = 0; d < n; ++d) {
      at = at * full.dims[d] + begin[d] + (d < first ? index[d] : 0);
    }
    run(at, length, local);
    size_t d = first;
    while (d > 0 && ++index[d - 1] == count[d - 1]) {
      index[--d] = 0;
    }
    if (d == 0) break;
  }
}

namespace {

/// (rank, buffer) of every rank that is here and holds the tensor.
template <typename F>
void for_each_holder(const std::string& name, const program::Program& program,
                     const runtime::LocalRanks& ranks, F use) {
  for (int32_t rank : ranks.ids()) {
    const auto& cls = program.classes[program.class_of(rank)];
    for (const auto& buffer : cls.buffers) {
      if (buffer.kind == program::BufferKind::persistent && buffer.name == name) {
        use(rank, buffer);
        break;
      }
    }
  }
}

template <typename T>
void fill(const graph::Tensor& tensor, const Layout& layout, const program::Program& program,
          int32_t rank, uint64_t seed, T* to) {
  const uint64_t stream = hash_name(tensor.name);
  for_each_run(tensor.type, layout, program, rank,
               [&](int64_t begin, int64_t count, int64_t local) {
                 std::span<T> part(to + local, static_cast<size_t>(count));
                 if (tensor.init.kind == graph::Init::Kind::normal) {
                   fill_normal(part, seed, stream, static_cast<uint64_t>(begin), tensor.init.value);
                 } else {
                   std::fill(part.begin(), part.end(), static_cast<T>(tensor.init.value));
                 }
               });
}

}  // namespace

std::vector<std::byte> put_together(const graph::Tensor& tensor, const program::Program& program,
                                    const std::vector<Part>& parts) {
  // Parts of one role in one layout are cut alike: the first such set that is complete will do.
  const auto bytes = [&](int64_t n) { return tensor.type.bytes_of(n); };
  std::vector<std::byte> full(static_cast<size_t>(tensor.type.bytes()));
  int64_t least_missing = tensor.type.numel();
  std::vector<std::pair<program::RoleId, Layout>> tried;
  for (const Part& first : parts) {
    const std::pair cut(program.role_of(first.rank), first.layout);
    if (std::find(tried.begin(), tried.end(), cut) != tried.end()) continue;
    tried.push_back(cut);
    int64_t missing = tensor.type.numel();
    std::map<int64_t, int64_t> taken;
    for (const Part& part : parts) {
      if (missing == 0) break;  // the rest are replicas
      if (part.layout != cut.second || program.role_of(part.rank) != cut.first) continue;
      for_each_run(tensor.type, part.layout, program, part.rank,
                   [&](int64_t begin, int64_t count, int64_t local) {
                     if (!taken.emplace(begin, count).second) return;
                     std::memcpy(full.data() + bytes(begin), part.data + bytes(local),
                                 static_cast<size_t>(bytes(count)));
                     missing -= count;
                   });
    }
    if (missing == 0) return full;
    least_missing = std::min(least_missing, missing);
  }
  fail_run("params", "{} of {} elements of {} are on no rank that is here", least_missing,
           tensor.type.numel(), tensor.name);
}

void initialise(const graph::Graph& graph, const program::Program& program, uint64_t seed,
                runtime::Rank& rank) {
  std::map<std::string, const graph::Tensor*> by_name;
  for (const graph::Tensor& tensor : graph.tensors) {
    if (tensor.kind == graph::TensorKind::param || tensor.kind == graph::TensorKind::state) {
      by_name[tensor.name] = &tensor;
    }
  }
  for (const auto& buffer : program.classes[program.class_of(rank.id())].buffers) {
    if (buffer.kind != program::BufferKind::persistent) continue;
    auto& entry = rank.store().get(buffer.name, buffer.type, buffer.layout, buffer.space);
    if (entry.initialised) continue;
    entry.initialised = true;
    auto it = by_name.find(buffer.name);
    HOCKET_CHECK(it != by_name.end(), "persistent tensor {} is not in the graph", buffer.name);
    const graph::Tensor& t = *it->second;
    // Memory comes zeroed.
    if (t.init.kind == graph::Init::Kind::none || t.init.value == 0) continue;
    std::byte* const data = entry.memory->data();
    if (t.type.dtype == graph::DType::f64) {
      fill(t, buffer.layout, program, rank.id(), seed, reinterpret_cast<double*>(data));
    } else if (t.type.dtype == graph::DType::f32) {
      fill(t, buffer.layout, program, rank.id(), seed, reinterpret_cast<float*>(data));
    } else {
      fail_run("parameters", "{} is {}; expected f32 or f64 where there is an initial value",
               t.name, to_string(t.type));
    }
  }
}

void initialise(const graph::Graph& graph, const program::Program& program, uint64_t seed,
                runtime::LocalRanks& ranks) {
  for (int32_t id : ranks.ids()) {
    initialise(graph, program, seed, ranks.at(id));
  }
}

void scatter(const graph::Tensor& tensor, const program::Program& program,
             runtime::LocalRanks& ranks, const std::function<void(int64_t, int64_t, void*)>& read) {
  for_each_holder(tensor.name, program, ranks, [&](int32_t rank, const program::Buffer& buffer) {
    auto& entry = ranks.at(rank).store().get(buffer.name, buffer.type, buffer.layout, buffer.space);
    entry.initialised = true;
    for_each_run(tensor.type, buffer.layout, program, rank,
                 [&](int64_t begin, int64_t count, int64_t local) {
                   read(begin, count, entry.memory->data() + tensor.type.bytes_of(local));
                 });
  });
}

std::vector<std::byte> gather(const graph::Tensor& tensor, const program::Program& program,
                              const runtime::LocalRanks& ranks) {
  std::vector<Part> parts;
  for_each_holder(tensor.name, program, ranks, [&](int32_t rank, const program::Buffer& buffer) {
    const auto& entry = ranks.at(rank).store().entries().at(buffer.name);
    parts.push_back({rank, buffer.layout, entry.memory->data()});
  });
  return put_together(tensor, program, parts);
}

}  // namespace hocket::engine
