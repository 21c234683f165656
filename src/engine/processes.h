// SPDX-License-Identifier: Apache-2.0
// The connection of this process to the others of its run.
#pragma once

#include <memory>
#include <string>

#include "comm/connection.h"
#include "run/config.h"

namespace hocket::engine {

/// Returns the connection, which the first call opens; that blocks until all processes have joined.
/// Throws Error if their number is not the plan's ranks.
std::shared_ptr<comm::Connection> connection(const Run& run);
/// The one that is there already; null: none.
comm::Connection* connection();
/// Ends the connection, if there is one. With a reason, which the others then end with, too;
/// without one it waits until all are done.
void disconnect(const std::string& why = "");

}  // namespace hocket::engine
