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

/// Error: this process has no GPU for its rank.
void expect_gpu(const Run& run, const comm::Place& place) {
  const comm::Gpus& gpus = comm::gpus();
  const std::string why = gpus.count == 0 ? gpus.why_none
                                          : fmt::format("this host has {} GPUs for {} ranks",
                                                        gpus.count, place.local_size);
  // A launcher may let every rank see the one that is its own.
  if (gpus.count != 1 && gpus.count < place.local_size) {
    fail(run.name,
         "plan.ranks is nccl, and {}; expected a PyTorch for CUDA and a GPU for every rank; try "
         "plan.ranks: gloo",
         why);
  }
}

}  // namespace

std::shared_ptr<comm::Connection> connection(const Run& run) {
  std::shared_ptr<comm::Connection>& connection = held();
  if (connection) return connection;
  const comm::Place& place = comm::launched();
  if (place.size != run.plan.world() || place.launcher.empty()) {
    comm::note_same_error();
    fail(run.name,
         "the plan has {} ranks, and {} started {}; expected a process for each; try hocket launch "
         "-n {}, or another plan",
         run.plan.world(), place.launcher.empty() ? "nobody" : place.launcher,
         place.launcher.empty() ? "any" : fmt::format("{} processes", place.size),
         run.plan.world());
  }
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(run.config.plan.timeout_s * 1000));
  const bool nccl = run.ranks == Ranks::nccl;
  if (nccl) {
    expect_gpu(run, place);
  }
  const comm::Groups groups = nccl ? comm::Groups::nccl : comm::Groups::gloo;
  connection = std::make_shared<comm::Connection>(comm::open_c10d(place, timeout, groups), timeout);
  if (nccl) {
    connection->check_collectives();
  }
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
