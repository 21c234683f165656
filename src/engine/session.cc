// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/process_world.h"
#include "engine/placement.h"
#include "engine/processes.h"

namespace hocket::engine {

runtime::RankOptions rank_options(const Run& run) {
  runtime::RankOptions options;
  options.threads = threads_per_rank(run.plan);
  options.timeout =
      std::chrono::milliseconds(static_cast<int64_t>(run.config.plan.timeout_s * 1000));
  return options;
}

namespace {

/// Returns whether ranks may differ in a key: places and sizes of their own hosts. Readers of those
/// compare the contents.
bool is_of_host(std::string_view key) {
  constexpr std::string_view kOfHost[] = {
      "model.path",
      "data.",
      "cluster.",
      "emulate.cluster",
      "emulate.profile",
      "output.dir",
      "plan.threads_per_rank",
  };
  return std::any_of(std::begin(kOfHost), std::end(kOfHost),
                     [&](std::string_view of_host) { return key.starts_with(of_host); });
}

/// A line for every other key: "train.lr: 0.001".
std::string settings_of(const Run& run) {
  std::string lines;
  for (const ResolvedConfig::Entry& entry : run.resolved.entries()) {
    if (!is_of_host(entry.path)) {
      lines += fmt::format("{}: {}\n", entry.path, entry.value);
    }
  }
  return lines;
}

/// Throws Error, in all processes, with the first differing setting: they would otherwise run
/// something that none was asked for.
void expect_same_settings(const Run& run, comm::Processes& processes) {
  constexpr int kMaxShown = 3;
  const std::vector<std::string> all = processes.all_gather(settings_of(run));
  const std::vector<std::string> first = split(all[0], '\n');
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i] == all[0]) continue;
    std::vector<std::string> here = split(all[i], '\n');
    std::vector<std::string> there = first;
    here.resize(std::max(here.size(), there.size()));
    there.resize(here.size());
    std::string has, expected;
    int shown = 0;
    for (size_t line = 0; line < here.size() && shown < kMaxShown; ++line) {
      if (here[line] == there[line]) continue;
      ++shown;
      has += (has.empty() ? "" : ", ") + quote(here[line]);
      expected += (expected.empty() ? "" : ", ") + quote(there[line]);
    }
    fail_run(run.name,
             "rank {} has {}; rank 0 has {}; expected the same settings on all ranks; try the same "
             "command and run.yaml everywhere",
             i, has, expected);
  }
}

}  // namespace

runtime::LocalRanks local_ranks(const Run& run) {
  const auto world = static_cast<int32_t>(run.plan.world());
  if (run.ranks == Ranks::local) {
    if (const comm::LaunchInfo& launch = comm::launch_info(); launch.size > 1) {
      comm::mark_common_error();
      fail(run.name,
           "{} started {} processes, and plan.ranks is local: each would be a run of its own; try "
           "plan.ranks: gloo",
           launch.launcher, launch.size);
    }
    if (run.c10d) {
      fail(run.name,
           "plan.collectives is c10d, and ranks are threads of one process, which c10d has nothing "
           "to do with; try plan.collectives: own, or a launcher (hocket launch -n {} ..)",
           world);
    }
    return {world, kernels::cpu_backend(), rank_options(run)};
  }
  // A wait for a lane includes that lane's wait for another process, which must time out first and
  // give the reason.
  runtime::RankOptions options = rank_options(run);
  options.timeout += std::chrono::seconds(5) + options.timeout / 10;
  const std::shared_ptr<comm::Connection> connection = engine::connection(run);
  expect_same_settings(run, *connection);
  const comm::Collectives collectives = run.c10d ? comm::Collectives::c10d : comm::Collectives::own;
  return {std::make_shared<comm::ProcessWorld>(connection, collectives),
          {connection->index()},
          kernels::cpu_backend(),
          options};
}

Session::Session(std::shared_ptr<const Compiled> compiled, runtime::Store store,
                 std::shared_ptr<const runtime::EmulatedDevice> emulated)
    : compiled_(std::move(compiled)),
      store_(std::move(store)),
      emulated_(std::move(emulated)),
      run_(std::shared_ptr<const program::Program>(compiled_, &compiled_->program), store_,
           emulated_) {}

const graph::Tensor& Session::tensor(const std::string& name) const {
  graph::TensorId id = graph().find(name);
  HOCKET_CHECK(id != graph::kNone, "the graph has no tensor {}", name);
  return graph().tensor(id);
}

void Session::feed(const FeedMap& feeds) {
  for (int32_t rank : ranks().ids()) {
    engine::feed(feeds, *compiled_, rank, run_.executor(rank));
  }
}

std::vector<std::byte> Session::collect(const std::string& name, int32_t micro_batch) const {
  graph::Tensor full = tensor(name);
  for (int32_t rank : ranks().ids()) {
    full.type = tensor(name).type.at(run_.executor(rank).symbol_values());
  }
  const auto fetch = [&](const Holder& holder, int64_t element, int64_t count, void* to) {
    const runtime::Executor& executor = run_.executor(holder.rank);
    const auto* from =
        static_cast<const std::byte*>(executor.output(holder.buffer->name, micro_batch));
    executor.device().copy(to, from + full.type.bytes_of(element), full.type.bytes_of(count));
  };
  return gather_tensor(full, {program(), program::BufferKind::output, micro_batch, name}, ranks(),
                       fetch);
}

double Session::loss() const {
  return collect_as<double>(graph().tensor(graph().losses.at(0)).name)[0];
}

}  // namespace hocket::engine
