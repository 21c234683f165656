// SPDX-License-Identifier: Apache-2.0
// What torchtitan calls what a plan here says in words of its own.
#pragma once

namespace hocket::interop {

/// Names of pipeline schedules on both sides; of these two stages per rank where nothing else is
/// said.
struct ScheduleName {
  const char* ours;
  const char* theirs;
  bool looped = false;
};
inline constexpr ScheduleName kTorchtitanSchedules[] = {{"1f1b", "1F1B"},
                                                        {"gpipe", "GPipe"},
                                                        {"interleaved", "Interleaved1F1B", true},
                                                        {"zb-h1", "InterleavedZeroBubble", true},
                                                        {"zb-v", "ZBVZeroBubble", true},
                                                        {"dualpipev", "DualPipeV", true}};

}  // namespace hocket::interop
