// SPDX-License-Identifier: Apache-2.0
// Handling of a second signal.
#pragma once

#include <chrono>

namespace hocket {

/// `timeout` and launchers send a signal to a process and to its group: the same one again within
/// this is no second request.
inline constexpr std::chrono::milliseconds kSameSignal(500);

}  // namespace hocket
