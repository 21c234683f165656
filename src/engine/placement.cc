// SPDX-License-Identifier: Apache-2.0
#include "engine/placement.h"

#include <numeric>

#include "base/error.h"
#include "base/intervals.h"
#include "program/buffer_contents.h"

namespace hocket::engine {

void for_each_held(const graph::Tensor& tensor, const program::Program& program,
                   const std::vector<Holder>& holders, const OnHeld& use) {
  for (const Holder& holder : holders) {
    program::for_each_run(*holder.buffer, tensor.name, tensor.type, program, holder.rank,
                          [&](int64_t begin, int64_t count, int64_t local) {
                            use({holder.rank, holder.buffer, begin, count, local});
                          });
  }
}

int64_t for_each_once(const graph::Tensor& tensor, const program::Program& program,
                      const std::vector<Holder>& holders, const OnHeld& use) {
  int64_t missing = tensor.type.numel();
  Intervals seen;
  for (const Holder& holder : holders) {
    if (missing == 0) break;  // the rest are replicas
    for_each_held(tensor, program, {holder}, [&](const Held& held) {
      seen.add(held.begin, held.count, [&](int64_t from, int64_t length) {
        missing -= length;
        use({held.rank, held.buffer, from, length, held.local + from - held.begin});
      });
    });
  }
  return missing;
}

Placement::Placement(const program::Program& program, program::BufferKind kind, int32_t micro_batch,
                     const std::string& only)
    : program_(program), classes_(program.class_table()) {
  for (size_t rank = 0; rank < classes_.size(); ++rank) {
    if (classes_[rank] != program::kNone) {
      all_.push_back(static_cast<int32_t>(rank));
    }
  }
  for (size_t cls = 0; cls < program.classes.size(); ++cls) {
    for (const program::Buffer& buffer : program.classes[cls].buffers) {
      if (buffer.kind != kind || buffer.micro_batch != micro_batch) continue;
      if (!only.empty() && !program::holds(buffer, only)) continue;
      for (const std::string& tensor : only.empty() ? program::tensors_of(buffer.name, buffer.slots)
                                                    : std::vector<std::string>{only}) {
        std::vector<const program::Buffer*>& list = buffers_[{tensor, cls}];
        if (list.empty() || list.back() != &buffer) {
          list.push_back(&buffer);
        }
      }
    }
  }
}

std::vector<Holder> Placement::holders(const std::string& tensor,
                                       const std::vector<int32_t>& ranks) const {
  std::vector<Holder> holders;
  for (const int32_t rank : ranks) {
    const auto found = buffers_.find({tensor, classes_[static_cast<size_t>(rank)]});
    if (found == buffers_.end()) continue;
    for (const program::Buffer* buffer : found->second) {
      holders.push_back({rank, buffer});
    }
  }
  return holders;
}

std::vector<Holder> Placement::holders(const std::string& tensor) const {
  return holders(tensor, all_);
}

std::vector<std::byte> gather_tensor(const graph::Tensor& tensor, const Placement& placement,
                                     const runtime::LocalRanks& ranks, const Fetch& fetch) {
  const auto bytes = [&](int64_t n) { return static_cast<size_t>(tensor.type.bytes_of(n)); };
  const program::Program& program = placement.program();
  std::vector<std::byte> full(bytes(tensor.type.numel()));
  const auto take = [&](const Held& held) {
    fetch({held.rank, held.buffer}, held.local, held.count, full.data() + bytes(held.begin));
  };
  comm::Processes& processes = ranks.processes();
  if (processes.size() == 1) {
    const int64_t missing =
        for_each_once(tensor, program, placement.holders(tensor.name, ranks.ids()), take);
    if (missing == 0) return full;
    fail_run("params", "{} of {} elements of {} are on no rank that is here", missing,
             tensor.type.numel(), tensor.name);
  }
  // Every process has the rank of its own number. Its data are in the common order of enumeration.
  const std::vector<Holder> holders = placement.holders(tensor.name);
  std::string mine;
  const int64_t missing = for_each_once(tensor, program, holders, [&](const Held& held) {
    if (!ranks.has(held.rank)) return;
    take(held);
    mine.append(reinterpret_cast<const char*>(full.data()) + bytes(held.begin), bytes(held.count));
  });
  if (missing > 0) {
    fail_run("params", "{} of {} elements of {} are on no rank", missing, tensor.type.numel(),
             tensor.name);
  }
  const std::vector<std::string> all = processes.all_gather(mine);
  std::vector<size_t> taken(all.size(), 0);
  for_each_once(tensor, program, holders, [&](const Held& held) {
    const auto from = static_cast<size_t>(held.rank);
    const size_t size = bytes(held.count);
    HOCKET_CHECK(taken[from] + size <= all[from].size(), "rank {} gives too little", held.rank);
    std::copy_n(reinterpret_cast<const std::byte*>(all[from].data()) + taken[from], size,
                full.data() + bytes(held.begin));
    taken[from] += size;
  });
  return full;
}

}  // namespace hocket::engine
