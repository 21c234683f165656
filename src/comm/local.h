// SPDX-License-Identifier: Apache-2.0
// Measures the local transport.
#pragma once

namespace hocket::comm {

/// α-β of a message between two threads: time = latency + bytes / bandwidth.
struct LinkTimes {
  double latency_s = 0;
  double bytes_per_s = 0;
};

/// Times round trips of small and of large messages between two local ranks (about 0.2 s).
LinkTimes time_local_link();

}  // namespace hocket::comm
