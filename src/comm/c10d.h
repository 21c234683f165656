// SPDX-License-Identifier: Apache-2.0
// The transport between processes: LibTorch's c10d, in a library of its own that is loaded when it
// is asked for.
#pragma once

#include <chrono>
#include <memory>

#include "comm/wire.h"

namespace hocket::comm {

/// Meets the other processes of the run: blocks until all have come. Throws Error when there is no
/// such library, or one that was built with another interface (comm/wire.h), or when some do not
/// come within the timeout.
std::unique_ptr<Wire> open_c10d(const Place& place, std::chrono::milliseconds timeout);

}  // namespace hocket::comm
