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

/// Throws Error if this process has no GPU for its rank.
void expect_gpu(const Run& run, const comm::LaunchInfo& launch) {
  const comm::Gpus& gpus = comm::gpus();
  const std::string why = gpus.count == 0 ? gpus.why_none
                                          : fmt::format("this host has {} GPUs for {} ranks",
                                                        gpus.count, launch.local_size);
  // A launcher may let every rank see the one that is its own.
  if (gpus.count != 1 && gpus.count < launch.local_size) {
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
  const comm::LaunchInfo& launch = comm::launch_info();
  if (launch.size != run.plan.world() || launch.launcher.empty()) {
    comm::mark_common_error();
    fail(run.name,
         "the plan has {} ranks, and {} started {}; expected a process for each; try hocket launch "
         "-n {}, or another plan",
         run.plan.world(), launch.launcher.empty() ? "nobody" : launch.launcher,
         launch.launcher.empty() ? "any" : fmt::format("{} processes", launch.size),
         run.plan.world());
  }
  const auto timeout =
      std::chrono::milliseconds(static_cast<int64_t>(run.config.plan.timeout_s * 1000));
  const bool nccl = run.ranks == Ranks::nccl;
  if (nccl) {
    expect_gpu(run, launch);
  }
  const comm::GroupBackend groups = nccl ? comm::GroupBackend::nccl : comm::GroupBackend::gloo;
  connection =
      std::make_shared<comm::Connection>(comm::open_c10d(launch, timeout, groups), timeout);
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
