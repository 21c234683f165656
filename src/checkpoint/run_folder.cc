// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/names.h"
#include "comm/run_on_all.h"

namespace hocket::checkpoint {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

RunFolder::RunFolder(const std::string& path)
    : path_(path), processes_(&comm::alone()), leader_pid_(::getpid()), hosts_{{host_name(), {}}} {}

RunFolder::RunFolder(const std::string& path, comm::Processes& processes,
                     const std::vector<int32_t>& ranks)
    : RunFolder(path) {
  // Every process writes a marker file with a fresh name, so that no cache of a network file system
  // can answer. The first process with a marker that is visible here is the leader. Processes with
  // the same leader share a file system.
  processes_ = &processes;
  hosts_[0].ranks = ranks;
  if (processes.size() == 1) return;
  const std::string here = fmt::format("{} {} {}", host_name(), ::getpid(), now_ns());
  const std::string nonce = hash128(processes.broadcast(here)).hex();
  const auto mark = [&](int32_t process) {
    return join_path(path_, fmt::format("{}{}-{}", kMarkerPrefix, nonce, process));
  };
  try {
    comm::run_on_all(processes, [&] {
      make_dirs(path_);
      FileWriter(mark(processes.index()), FileWriter::Mode::create).close();
      return std::string();
    });
  } catch (const Error&) {
    remove_file(mark(processes.index()));
    throw;
  }
  while (!file_exists(mark(leader_))) {
    ++leader_;  // ends at this process at the latest: its own marker is visible
  }
  const nlohmann::json mine = {
      {"leader", leader_}, {"pid", ::getpid()}, {"name", host_name()}, {"ranks", ranks}};
  const std::vector<std::string> all = processes.all_gather(mine.dump());
  remove_file(mark(processes.index()));

  std::map<int32_t, int32_t> number;  // host index by its leader
  hosts_.clear();
  for (const std::string& text : all) {
    const nlohmann::json object = parse_json(text, "a process");
    const JsonView entry(object, "a process");
    const auto leader = static_cast<int32_t>(entry.get_int("leader"));
    const auto [found, fresh] = number.emplace(leader, static_cast<int32_t>(hosts_.size()));
    if (fresh) {
      hosts_.push_back({entry.get_string("name"), {}});
    }
    for (const int64_t rank : entry.at("ranks").as_ints()) {
      hosts_[static_cast<size_t>(found->second)].ranks.push_back(static_cast<int32_t>(rank));
    }
  }
  for (Host& host : hosts_) {
    std::sort(host.ranks.begin(), host.ranks.end());
  }
  host_ = number.at(leader_);
  const nlohmann::json leader = parse_json(all[static_cast<size_t>(leader_)], "a process");
  leader_pid_ = JsonView(leader, "a process").get_int("pid");
}

}  // namespace hocket::checkpoint
