// SPDX-License-Identifier: Apache-2.0
// Connections between threads of this process, each as if it were a process of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "comm/connection.h"

namespace hocket::comm::test {

/// Creates one connection per rank. `silent`: while true, the shared table, hosted by rank 0, does
/// not answer.
std::vector<std::shared_ptr<Connection>> connections(
    int32_t ranks, std::chrono::milliseconds timeout,
    const std::shared_ptr<std::atomic<bool>>& silent = nullptr);

}  // namespace hocket::comm::test
