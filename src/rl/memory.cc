// SPDX-License-Identifier: Apache-2.0
#include "rl/memory.h"

#include <algorithm>

#include "base/error.h"
#include "comm/run_on_all.h"

namespace hocket::rl {

std::vector<program::Memory> memory_by_rank(const program::Program& program) {
  const std::vector<program::Memory> by_class = program::memory_of(program);
  std::vector<program::Memory> by_rank;
  for (int32_t rank = 0; rank < program.num_ranks(); ++rank) {
    by_rank.push_back(by_class[program.class_of(rank).value()]);
  }
  return by_rank;
}

namespace {

/// Returns the bytes at `count` of a line through those at `from` and at `to`.
int64_t on_line(int64_t at_from, int64_t at_to, int64_t from, int64_t to, int64_t count) {
  const double each = static_cast<double>(at_to - at_from) / static_cast<double>(to - from);
  return at_to + static_cast<int64_t>(each * static_cast<double>(count - to));
}

}  // namespace

std::vector<program::Memory> memory_at(const SpecOf& spec, int64_t micro_batches,
                                       int64_t multiple) {
  // Pipelines are full by then, under every schedule.
  const int64_t from = 4 * multiple, to = 5 * multiple;
  const auto compiled = [&](int64_t count) {
    return memory_by_rank(engine::compile(spec(count)).program);
  };
  if (micro_batches <= to) return compiled(micro_batches);
  const std::vector<program::Memory> few = compiled(from);
  std::vector<program::Memory> all = compiled(to);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto extend = [&](int64_t program::Memory::*part) {
      all[rank].*part = on_line(few[rank].*part, all[rank].*part, from, to, micro_batches);
    };
    extend(&program::Memory::inputs_outputs);
    extend(&program::Memory::step_buffers);
    extend(&program::Memory::messages);
    extend(&program::Memory::host);
  }
  return all;
}

void MemoryPlan::add(const std::vector<program::Memory>& by_rank, bool with_store) {
  by_rank_.resize(std::max(by_rank_.size(), by_rank.size()));
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    program::Memory& all = by_rank_[rank];
    const program::Memory& more = by_rank[rank];
    all.persistent += with_store ? more.persistent : 0;
    all.inputs_outputs = std::max(all.inputs_outputs, more.inputs_outputs);
    all.step_buffers = std::max(all.step_buffers, more.step_buffers);
    all.messages = std::max(all.messages, more.messages);
    all.host = std::max(all.host, more.host);
  }
}

std::vector<program::Memory> MemoryPlan::by_class(const program::Program& program) const {
  std::vector<program::Memory> planned(program.classes.size());
  for (int32_t rank = 0; rank < program.num_ranks(); ++rank) {
    program::Memory& most = planned[program.class_of(rank).value()];
    const program::Memory& all = by_rank_[static_cast<size_t>(rank)];
    if (all.total() > most.total()) {
      most = all;
    }
  }
  return planned;
}

void MemoryPlan::require(const program::Program& later, const std::string& remedy) const {
  std::vector<program::Memory> need = memory_by_rank(later);
  bool planned = true;
  for (size_t rank = 0; rank < need.size(); ++rank) {
    need[rank].persistent = by_rank_[rank].persistent;
    planned = planned && need[rank].with_host() <= by_rank_[rank].with_host();
  }
  if (planned) return;
  comm::run_on_all(ranks_.processes(), [&] {
    std::vector<int64_t> bytes;
    for (const program::Memory& memory : need) {
      bytes.push_back(memory.total());
    }
    if (!run_.config.cluster.memory_budget) {
      // Free memory is beside that which the ranks here have already.
      for (const int32_t rank : ranks_.ids()) {
        int64_t& of_rank = bytes[static_cast<size_t>(rank)];
        of_rank = std::max<int64_t>(of_rank - ranks_.measured(rank).total(), 0);
      }
    }
    if (const std::string why = engine::why_too_large(run_, bytes); !why.empty()) {
      fail(run_.name, "for a program of {} micro-batches {}; try {}", later.num_micro_batches, why,
           remedy);
    }
    return std::string();
  });
}

}  // namespace hocket::rl
