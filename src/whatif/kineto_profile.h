// SPDX-License-Identifier: Apache-2.0
// One rank's PyTorch profile (Kineto): kernels and copies in streams, the calls of the host that
// launch them and wait for them, and the profiler's steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "whatif/measured_run.h"

namespace hocket::whatif::kineto {

inline constexpr int32_t kCallStream = -1;
inline constexpr double kClockError =
    2e-6;                             ///< seconds by which a stream's and a rank's times may differ
inline constexpr size_t kListed = 8;  ///< ranks and steps that are named one by one

/// A row of Profile::device.
using ActivityIndex = Id<struct Activity>;

/// A call of the host that launches or waits, or an activity of the device.
struct Activity {
  double start = 0, end = 0;
  std::string name;
  int64_t correlation = kNone;
  int64_t thread = 0;  ///< of the host
  int32_t stream = kCallStream;
  int64_t step = kNone;            ///< in which the host called or launched it
  bool earlier = false;            ///< of the device: launched before the profile began
  ActivityIndex launches = kNone;  ///< of a call: the first activity; a graph has many
  ActivityIndex next = kNone;      ///< of an activity: the next one of its launch, by start
  int32_t number = kNone;  ///< of a collective: the index among those of its name in the step
  int64_t bytes = 0;       ///< of a collective; 0: not said
};

/// Meaning of a host call for the device.
enum class Call { launches, waits_for_device, waits_for_event, makes_streams_wait, other };
Call call_of(std::string_view name);

bool is_collective(std::string_view name);
/// Returns whether a collective adds up, as those of gradients do.
bool is_sum(std::string_view name);

/// A mark ProfilerStep#N.
struct Step {
  int64_t number = 0;
  double start = 0, end = 0;
};

struct Profile {
  std::string path;
  std::string unusable;  ///< why; empty: it is used
  int32_t rank = kNone, world_size = 0;
  std::vector<Activity> host, device;  ///< in the order of their starts
  std::vector<Activity> marks;         ///< host marks "nccl:all_reduce", which launch a collective
  std::vector<Step> steps;             ///< empty: the whole profile is step 0
  std::map<int64_t, int64_t> calls_of_step;  ///< by its number
  int64_t without_time = 0;                  ///< events that are not used
  int64_t outside = 0;                       ///< calls in no step
  int64_t unrecorded = 0;                    ///< launches without their activity in the profile
  int64_t orphans = 0;                       ///< kernels with a launch that is absent or in no step
  int64_t orphans_within = 0;                ///< orphans that ran during a step
  bool lost_records() const { return without_time + unrecorded + orphans_within > 0; }
};

/// Reads a profile. Returns the readable part of an unusable one and adds the reason to `dropped`.
/// Throws Error if the file does not exist.
Profile read_profile(const std::string& path, Dropped* dropped);

/// Returns the bytes of the mark that a call lies in.
int64_t marked_bytes(const Profile& profile, const Activity& call);

/// Adds a note on events that are not used.
inline void note(int64_t events, std::string text, Dropped* dropped) {
  dropped->events += events;
  dropped->notes.push_back(std::move(text));
}

}  // namespace hocket::whatif::kineto
