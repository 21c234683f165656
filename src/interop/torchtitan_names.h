// SPDX-License-Identifier: Apache-2.0
// Names that differ between torchtitan and Hocket's plans.
#pragma once

namespace hocket::interop {

/// Names of pipeline schedules on both sides, with the default number of stages per rank.
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
