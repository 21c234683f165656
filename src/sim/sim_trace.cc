// SPDX-License-Identifier: Apache-2.0
// Conversion of a replay to a trace.
#include "sim/sim_trace.h"

#include <fmt/format.h>

#include <span>

#include "base/error.h"
#include "trace/trace_builder.h"

namespace hocket::sim {

trace::Trace to_trace(const Program& program, const Replay& replay) {
  HOCKET_CHECK(std::ssize(replay.start_ns) == replay.num_tasks, "the replay kept no timeline");
  trace::TraceBuilder builder(program, "predicted step", "simulation");
  for (size_t i = 0; i < replay.ranks.size(); ++i) {
    const int32_t rank = replay.ranks[i];
    const auto first = static_cast<size_t>(replay.base[i]);
    const size_t count = program.classes[program.class_of(rank)].tasks.size();
    builder.add_step(rank, 0, std::span(replay.start_ns).subspan(first, count),
                     std::span(replay.end_of_ns).subspan(first, count), 0,
                     std::span(replay.transfer_ns).subspan(first, count));
  }
  if (replay.deduplicated && std::ssize(replay.ranks) < program.num_ranks()) {
    std::string text;
    for (size_t i = 0; i < replay.ranks.size(); ++i) {
      text += fmt::format("{}rank {} stands for {}", i > 0 ? ", " : "", replay.ranks[i],
                          replay.multiplicity[i]);
    }
    builder.trace().set_property("replayed_ranks", text);
  }
  return builder.take();
}

}  // namespace hocket::sim
