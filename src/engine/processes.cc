// SPDX-License-Identifier: Apache-2.0
#include "engine/processes.h"

#include "base/error.h"
#include "comm/c10d.h"
#include "comm/launch.h"

namespace hocket::engine {

namespace {

std::shared_ptr<comm::Connection>& held() {
  static std::shared_ptr<comm::Connection> connection;
  return connection;
}

}  // namespace

std::shared_ptr<comm::Connection> connection(const Run& run) {
  std::shared_ptr<comm::Connection>& connection = held();
  if (connection) return connection;
  const comm::Place& place = comm::launched();
  if (place.size != run.plan.world()) {
    fail(run.name,
         "the plan has {} ranks, and {} started {}; expected a process for each; try hocket launch "
         "-n {}, or another plan",
         run.plan.world(), place.launcher.empty() ? "nobody" : place.launcher,
         place.launcher.empty() ? "any" : fmt::format("{} processes", place.size),
         run.plan.world());
  }
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(run.config.plan.timeout_s * 1000));
  connection = std::make_shared<comm::Connection>(comm::open_c10d(place, timeout), timeout);
  return connection;
}

comm::Connection* connection() { return held().get(); }

void disconnect(const std::string& why) {
  std::shared_ptr<comm::Connection>& connection = held();
  if (!connection) return;
  if (why.empty()) {
    connection->leave();
  } else {
    connection->fail(why);
  }
  connection.reset();
}

}  // namespace hocket::engine
