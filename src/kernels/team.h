// SPDX-License-Identifier: Apache-2.0
// Threads of one kernel call. Every thread that runs kernels (a lane, a test) has a team of its
// own: itself and sleeping helpers, so lanes share the cores. Parts of a job are taken one by one:
// a helper that wakes late finds its part done, and delays nothing.
#pragma once

#include <cstdint>

namespace hocket::kernels {

/// Size of the calling thread's team (1 until set_team_size). Inside a part it is 1.
int team_size();
/// Sets it; n >= 1. Helpers start with the first job that needs them and end with the thread.
void set_team_size(int n);

using Part = void (*)(void* context, int64_t part, int64_t thread);
/// Calls run(context, part, thread) for every part in [0, parts), on at most `limit` threads of the
/// team; 0 <= thread < limit identifies a thread for the whole call. Returns when all are done;
/// throws the first exception of a part (parts not yet started are skipped).
void run_parts(int64_t parts, int64_t limit, Part run, void* context);

/// run_parts with a function: fn(part, thread).
template <typename F>
void parallel(int64_t parts, int64_t limit, F& fn) {
  run_parts(
      parts, limit,
      [](void* f, int64_t part, int64_t thread) { (*static_cast<F*>(f))(part, thread); }, &fn);
}

}  // namespace hocket::kernels
